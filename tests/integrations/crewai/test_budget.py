"""Prompts that are too long: cut to a budget, or the end of the rollout, never of the process."""

import inspect

import pytest
from agl_budget import PromptBudget
from agl_crewai import PromptBudgetHook
from agl_crewai._integration import CrewAIIntegration
from agl_testing._captured import check_identity, triplets
from agl_testing.scenario import ANSWER, PLANNER, WRITER
from crewai import Crew, lite_agent
from crewai.agents import agent_executor
from crewai.hooks import register_before_llm_call_hook, unregister_before_llm_call_hook
from crewai.hooks.dispatch import HookAborted

from agl_core import semconv
from agl_core.errors import ConfigError, ContextOverflowError
from agl_core.types import SpanKind

from .programs import agent, lookup, task

HISTORY = [
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "Well, thank you. " * 50},
    {"role": "user", "content": "How much is tea?"},
]


def words(messages, tools):
    return sum(len(str(message.get("content")).split()) for message in messages) + len(tools)


@pytest.fixture
def budget():
    """Registers a budget for one test."""
    hooks = []

    def register(tokens):
        hooks.append(PromptBudgetHook(PromptBudget(tokens, count=words)))
        register_before_llm_call_hook(hooks[-1])

    yield register
    for hook in hooks:
        unregister_before_llm_call_hook(hook)


def too_long(bench):
    text = "This model's maximum context length is 10 tokens."
    body = {"error": {"message": text, "code": "context_length_exceeded"}}
    bench.fake.fail(1, status=400, body=body)


async def test_the_middle_of_a_history_is_cut(bench, budget):
    budget(100)
    played = await bench.one(lambda job: agent(job, WRITER).kickoff(HISTORY).raw)
    assert played.output == ANSWER
    check_identity(played)
    (call,) = played.calls
    assert words(call.messages, ()) <= 100
    assert "How much is tea?" in call.messages[-1]["content"]
    (said,) = [span for span in played.spans if span.name == semconv.AGL_PROMPT_CUT]
    assert said.attributes[semconv.AGL_PROMPT_CUT]["agent"] == WRITER
    assert len(triplets(played, WRITER)) == 1


async def test_tools_count_and_what_fits_is_not_touched(bench, budget):
    budget(10_000)
    played = await bench.one(lambda job: agent(job, PLANNER, lookup).kickoff(job.question).raw)
    assert played.output == ANSWER
    assert not [span for span in played.spans if span.name == semconv.AGL_PROMPT_CUT]


@pytest.mark.parametrize("form", ["crew", "crew in a loop", "agent"])
async def test_what_cannot_be_cut_ends_as_an_overflow(bench, budget, form):
    budget(2)
    played = await bench.one(FORMS[form])
    assert isinstance(played.error, ContextOverflowError)
    assert not played.calls


async def test_a_budget_that_nobody_counts_stops_the_agent(bench):
    hook = PromptBudgetHook(PromptBudget(5, count=lambda messages, tools: "many"))
    register_before_llm_call_hook(hook)
    try:
        played = await bench.one(lambda job: agent(job, WRITER).kickoff(job.question).raw)
    finally:
        unregister_before_llm_call_hook(hook)
    assert isinstance(played.error, HookAborted)
    assert not played.calls


def crew_of(job):
    writer = agent(job, WRITER)
    return Crew(agents=[writer], tasks=[task(job.question, writer)])


async def in_a_loop(job):
    return (await crew_of(job).akickoff()).raw


FORMS = {
    "crew": lambda job: crew_of(job).kickoff().raw,
    "crew in a loop": in_a_loop,
    "agent": lambda job: agent(job, WRITER).kickoff(job.question).raw,
}


@pytest.mark.parametrize("form", FORMS)
async def test_a_prompt_that_nobody_cuts_ends_the_rollout_alone(bench, form):
    too_long(bench)
    played = await bench.one(FORMS[form])
    assert isinstance(played.error, ContextOverflowError)
    assert "PromptBudgetHook" in str(played.error)
    ran = [span for span in played.spans if span.kind is SpanKind.AGENT]
    assert [span.error.partition(":")[0] for span in ran] == ["PromptOverflowError"]
    assert len(played.calls) == 1


async def test_the_guard_takes_arguments_as_the_function_does(bench):
    async def program(job):
        lite_agent.handle_context_length(False, None, [], "gpt", [])

    played = await bench.one(program)
    assert isinstance(played.error, ContextOverflowError)
    assert "'gpt'" in str(played.error)


def test_outside_a_rollout_it_is_as_ever():
    before = _state()
    listening = CrewAIIntegration()
    listening.attach()
    assert _state() != before
    with pytest.raises(SystemExit):
        lite_agent.handle_context_length(
            respect_context_window=False,
            printer=None,
            messages=[],
            llm=None,
            callbacks=[],
            verbose=False,
        )
    listening.detach()
    assert _state() == before


def test_a_version_that_leaves_otherwise_is_refused(monkeypatch):
    before = inspect.getattr_static(lite_agent, "handle_context_length")
    monkeypatch.delattr(lite_agent, "handle_context_length")
    with pytest.raises(ConfigError, match=r"handle_context_length\(.*lite_agent.py"):
        CrewAIIntegration().attach()
    monkeypatch.undo()
    assert _state()[-1] is before


def _state():
    return [each.handle_context_length for each in (agent_executor, lite_agent)]
