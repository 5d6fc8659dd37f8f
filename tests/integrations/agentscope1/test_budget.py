"""A budget in the formatter of an agent, and a prompt that nobody cut."""

import logging

import pytest
from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.token import CharTokenCounter
from agl_agentscope import PromptBudgetFormatter
from agl_agentscope._integration import AgentScopeIntegration
from agl_budget import PromptBudget
from agl_testing.bench import Bench
from agl_testing.fake_openai import FakeOptions
from agl_testing.scenario import ANSWER, PLANNER, SYSTEM, TOOL_RESULT, WRITER

from agl_core import semconv
from agl_core.errors import ContextOverflowError
from agl_core.runner._attempt import failure_of
from agl_core.tracing import attach
from agl_core.types import FailureKind

from .programs import agent, lookup, models, reply, streamed, toolkit, user

OVERFLOW = {
    "error": {
        "message": "This model's maximum context length is 10 tokens, got 99",
        "type": "invalid_request_error",
        "code": "context_length_exceeded",
    }
}


@pytest.fixture
async def counting():
    async with Bench.open(FakeOptions(tokenize=True, stable=True)) as bench:
        attachment = attach(integrations=[AgentScopeIntegration()])
        yield bench
        attachment.detach()


def fitting(budget=None, **fields):
    return PromptBudgetFormatter(OpenAIChatFormatter(), budget, **fields)


async def remember(speaker, count):
    for n in range(count):
        await speaker.observe(user(f"question {n} " + "x" * 60))
        await speaker.observe(Msg(speaker.name, f"answer {n}", "assistant"))


def cuts(played):
    return [
        (span.agent, span.attributes[semconv.AGL_PROMPT_CUT])
        for span in played.spans
        if span.name == semconv.AGL_PROMPT_CUT
    ]


@pytest.mark.parametrize("ask", [reply, streamed])
async def test_what_is_sent_is_cut_and_the_memory_keeps_everything(counting, ask):
    async def program(job):
        async with models(job, stream=ask is streamed) as model:
            writer = agent(model, WRITER, formatter=fitting(300))
            await remember(writer, 8)
            text = await ask(writer, "and now?")
            return text, await writer.memory.size()

    played = await counting.one(program)
    assert played.error is None
    text, remembered = played.output
    assert text == ANSWER
    assert remembered == 18
    (call,) = played.calls
    assert len(call.prompt_token_ids) <= 300
    assert SYSTEM in str(call.messages[0])
    assert "and now?" in str(call.messages[-1])
    ((who, cut),) = cuts(played)
    assert who == WRITER
    assert cut["budget"] == 300
    assert cut["messages_cut"] > 0


async def test_tools_count_and_their_results_stay_with_their_calls(counting):
    async def program(job):
        async with models(job) as model:
            tools = toolkit(lookup)
            planner = ReActAgent(
                PLANNER, SYSTEM, model(PLANNER), fitting(700, toolkit=tools), toolkit=tools
            )
            planner.set_console_output_enabled(False)
            await remember(planner, 12)
            return await reply(planner, job.question)

    played = await counting.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    first, second = played.calls
    assert max(len(first.prompt_token_ids), len(second.prompt_token_ids)) <= 700
    assert TOOL_RESULT in str(second.messages[-1])
    assert second.messages[-2]["tool_calls"]


async def test_what_has_to_stay_and_is_too_long_says_so(counting, caplog):
    async def program(job):
        async with models(job) as model:
            await reply(agent(model, WRITER, formatter=fitting(3)), "hi")

    with caplog.at_level(logging.CRITICAL):
        played = await counting.one(program)
    assert isinstance(played.error, ContextOverflowError)
    assert not played.calls


async def test_outside_a_rollout_it_needs_a_count(counting):
    counted = []

    def count(messages, tools):
        counted.append(len(messages))
        return 100 * len(messages)

    async with models(_Job(counting)) as model:
        writer = agent(model, WRITER, formatter=fitting(PromptBudget(300, count=count)))
        await remember(writer, 4)
        assert await reply(writer, "and now?") == ANSWER
        assert counted[0] == 10
        assert len(counting.fake.log[-1].body["messages"]) <= 3
        uncut = agent(model, WRITER, formatter=fitting(3))
        assert await reply(uncut, "hi") == ANSWER


def test_it_has_the_fields_of_its_formatter_and_serves_where_one_is_asked_for():
    made = fitting(300)
    assert made.support_tools_api
    config = ReActAgent.CompressionConfig(
        enable=True,
        agent_token_counter=CharTokenCounter(),
        trigger_threshold=10,
        compression_formatter=made,
    )
    assert config.compression_formatter is made


class _Job:
    def __init__(self, bench):
        self.base_url, self.api_key = bench.fake.base_url, "key"

    def model(self, name):
        return name


@pytest.mark.parametrize("ask", [reply, streamed])
async def test_an_uncut_prompt_ends_as_an_overflow(bench, caplog, ask):
    async def program(job):
        async with models(job, stream=ask is streamed) as model:
            await ask(agent(model, WRITER), job.question)

    bench.fake.fail(8, status=400, body=OVERFLOW)
    with caplog.at_level(logging.CRITICAL):
        played = await bench.one(program)
    assert played.error is not None
    found = failure_of(played.error, stage=FailureKind.AGENT, origins=frozenset(), late=False)
    assert found.kind is FailureKind.CONTEXT_OVERFLOW
    assert {call.status_code for call in played.calls} == {400}
    assert played.adapt(WRITER).trajectories == {}
