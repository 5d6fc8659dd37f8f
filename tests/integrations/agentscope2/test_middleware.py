"""What the middleware makes of teams, tools, streams left early, and agents used wrongly."""

import asyncio
import gc
import logging

import agl_agentscope
import pytest
from agentscope.agent import Agent, InjectionConfig
from agentscope.event import TextBlockDeltaEvent
from agentscope.message import DataBlock, URLSource, UserMsg
from agentscope.middleware import MiddlewareBase
from agentscope.pipeline import TeamMember, TeamPipeline
from agentscope.tool import FunctionTool
from agl_agentscope import AglMiddleware
from agl_agentscope._integration import AgentScopeIntegration
from agl_agentscope._usage import CLOCK, SHARED
from agl_testing._captured import check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, TOOL, WRITER

from agl_core import semconv
from agl_core.errors import CaptureError, ConfigError, MissingExtraError
from agl_core.tracing import agent_scope, attach
from agl_core.types import SpanKind

from .programs import ALLOWED, agent, lookup, models, reply, user


def named(spans, kind):
    return [span for span in spans if span.kind is kind and span.call is None]


def lead(body):
    """The leader assigns once, then says the answer."""
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        arguments = f'{{"member": "{WRITER}", "prompt": "Say it."}}'
        return FakeReply(tool_calls=[{"name": "TeamAssign", "arguments": arguments}])
    return FakeReply(text=ANSWER)


async def test_a_team_has_named_members_and_says_who_was_given_what(bench):
    bench.fake.script = lead

    async def program(job):
        async with models(job) as model:
            member = TeamMember(agent=agent(model, WRITER), description="says it")
            team = TeamPipeline(agent(model, PLANNER), [member])
            return [event async for event in team.reply_stream(user(job.question))]

    played = await bench.one(program)
    assert played.error is None
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert [call.agent for call in played.calls] == [PLANNER, WRITER, PLANNER]
    runs = [call.agent_run_id for call in played.calls]
    assert runs[0] == runs[2] != runs[1]
    (handoff,) = named(played.spans, SpanKind.MESSAGE)
    above = next(span for span in played.spans if span.id == handoff.parent_id)
    assert (above.kind, above.agent) == (SpanKind.AGENT, PLANNER)
    assert (handoff.agent, handoff.agent_run_id) == (PLANNER, runs[0])
    assert handoff.attributes[semconv.AGL_HANDOFF_FROM] == PLANNER
    assert handoff.attributes[semconv.AGL_HANDOFF_TO] == WRITER


async def test_an_agent_made_before_attaching_is_recorded_and_left_as_it_was(unattached):
    made = {}

    async def make(job):
        made["models"] = models(job)
        model = await made["models"].__aenter__()
        made["agent"] = agent(model, WRITER)

    async def use(job):
        made["agent"].model.model = job.model(WRITER)
        text = await reply(made["agent"], job.question)
        await made["models"].__aexit__(None, None, None)
        return text

    await unattached.one(make)
    attachment = attach(integrations=[AgentScopeIntegration()])
    try:
        played = await unattached.one(use)
    finally:
        attachment.detach()
    assert played.output == ANSWER
    check_identity(played)
    assert made["agent"]._reply_middlewares == []


async def test_one_agent_at_the_same_time_is_said_and_each_call_is_its_own(bench, caplog):
    async def program(job):
        async with models(job) as model:
            shared = agent(model, WRITER)
            await asyncio.gather(*(reply(shared, job.question) for _ in range(2)))

    bench.interleave(2)
    played = await bench.one(program)
    assert played.error is None
    check_tokens(played, bench.fake.log)
    assert len({call.agent_run_id for call in played.calls}) == 2
    marks = [span.attributes.get(SHARED) for span in named(played.spans, SpanKind.AGENT)]
    assert marks == [None, "concurrent"]
    assert caplog.text.count("at the same time") == 1


async def test_an_agent_that_remembers_another_rollout_is_said(bench, caplog):
    made = []

    async def program(job):
        async with models(job) as model:
            if not made:
                made.append(agent(model, WRITER))
            made[0].model = model(WRITER)
            return await reply(made[0], job.question)

    first, second = await bench.one(program), await bench.one(program)
    (one,), (other,) = (named(played.spans, SpanKind.AGENT) for played in (first, second))
    assert (one.attributes.get(SHARED), other.attributes.get(SHARED)) == (None, "carried")
    assert "make one for each rollout" in caplog.text


async def test_the_time_of_day_in_a_prompt_is_said_once(bench, caplog):
    async def program(job):
        async with models(job) as model:
            writer = agent(model, WRITER, injection_config=InjectionConfig())
            await reply(writer, job.question)
            await reply(writer, job.question)

    with caplog.at_level(logging.WARNING, logger="agl_agentscope"):
        played = await bench.one(program)
    assert "current-time" in str(played.calls[0].messages)
    assert [span.attributes.get(CLOCK) for span in named(played.spans, SpanKind.AGENT)] == [
        True
    ] * 2
    assert caplog.text.count("inject_runtime_state=False") == 1


async def test_a_tool_that_raises_is_told_to_the_model_and_recorded(bench):
    async def lookup(item: str) -> str:
        """Look up.

        Args:
            item (str): the item
        """
        raise KeyError(item)

    async def program(job):
        async with models(job) as model:
            return await reply(agent(model, PLANNER, lookup), job.question)

    played = await bench.one(program)
    assert played.output == ANSWER
    (tool,) = named(played.spans, SpanKind.TOOL)
    assert (tool.name, tool.status) == (TOOL, "error")
    assert "tea" in tool.error
    assert tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {"item": "tea"}


async def test_what_middleware_asks_a_model_is_not_the_agents(bench):
    class Asks(MiddlewareBase):
        def __init__(self, model):
            self.model = model

        async def on_system_prompt(self, agent, current_prompt):
            await self.model([user("think of something")])
            return current_prompt

    async def program(job):
        async with models(job) as model:
            writer = agent(model, WRITER, middlewares=[Asks(model(JUDGE))])
            return await reply(writer, job.question)

    played = await bench.one(program)
    assert played.error is None
    # The framework prepares the prompt once more to see whether it is too long.
    assert {call.agent for call in played.calls} == {WRITER, "@context", "@summarizer"}
    assert [call.agent for call in played.calls].count(WRITER) == 1


async def test_a_compression_speaks_as_the_summarizer(bench, caplog):
    async def program(job):
        async with models(job, context_size=400) as model:
            writer = agent(model, WRITER)
            await writer.observe(user("long " * 400))
            return await reply(writer, job.question)

    with caplog.at_level(logging.CRITICAL):
        played = await bench.one(program)
    agents = [call.agent for call in played.calls]
    assert agents[0] == "@summarizer"
    assert [call.trainable for call in played.calls if call.agent == "@summarizer"] == [
        False for name in agents if name == "@summarizer"
    ]


async def test_a_stream_that_is_left_is_incomplete_and_never_trained(bench):
    async def before_send(answer, position):
        if position > 2:
            await asyncio.Event().wait()

    async def program(job):
        async with models(job, stream=True) as model:
            events = agent(model, WRITER).reply_stream(user(job.question))
            async for event in events:
                if isinstance(event, TextBlockDeltaEvent):
                    break
            await events.aclose()
            del events
            gc.collect()

    bench.fake.before_send = before_send
    played = await bench.one(program)
    assert played.error is None
    (call,) = played.calls
    assert call.agent == WRITER
    assert not call.complete
    with pytest.raises(CaptureError):
        played.adapt(WRITER)


async def test_a_cancelled_reply_ends_its_spans(bench):
    async def program(job):
        async with models(job) as model:

            async def wait(item: str) -> str:
                """Wait.

                Args:
                    item (str): the item
                """
                started.set()
                await asyncio.Event().wait()
                return item

            started = asyncio.Event()
            task = asyncio.create_task(reply(agent(model, PLANNER, wait), job.question))
            await started.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    played = await bench.one(program)
    assert played.error is None
    assert all(span.error != "not ended" for span in played.spans)


@pytest.mark.parametrize("name", ["forscher/süß 研究", "a" * 300])
async def test_names_of_any_kind(bench, name):
    async def program(job):
        async with models(job) as model:
            return await reply(agent(lambda _: model(WRITER), name), job.question)

    played = await bench.one(program)
    assert played.output == ANSWER
    assert [call.agent for call in played.calls] == [name]


async def test_two_agents_of_one_name_are_one_agent_with_two_runs(bench):
    async def program(job):
        async with models(job) as model:
            return [await reply(agent(model, WRITER), job.question) for _ in range(2)]

    played = await bench.one(program)
    assert {call.agent for call in played.calls} == {WRITER}
    assert len({call.agent_run_id for call in played.calls}) == 2


async def test_an_agent_without_a_name_has_that_of_the_scope_around(bench):
    async def program(job):
        async with models(job) as model:
            with agent_scope(WRITER):
                return await reply(agent(lambda _: model(WRITER), ""), job.question)

    played = await bench.one(program)
    assert [call.agent for call in played.calls] == [WRITER]


async def test_text_that_is_no_json_and_a_tool_output_of_ten_megabytes(bench):
    def script(body):
        if body["messages"][-1]["role"] != "tool":
            return FakeReply(tool_calls=[{"name": "big", "arguments": "{no json"}])
        return FakeReply(text=ANSWER)

    async def big(item: str = "") -> str:
        """Give much.

        Args:
            item (str): the item
        """
        return "x" * 10_000_000

    bench.fake.script = script

    async def program(job):
        async with models(job, context_size=100_000_000) as model:
            return await reply(agent(model, PLANNER, big), job.question)

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    assert sum(len(str(span.attributes)) for span in played.spans) < 1_000_000


async def test_an_image_in_a_message(bench):
    image = DataBlock(source=URLSource(url="https://example.org/tea.png", media_type="image/png"))

    async def program(job):
        async with models(job) as model:
            return await agent(model, WRITER).reply(UserMsg(name="user", content=[image]))

    played = await bench.one(program)
    assert played.error is None
    check_identity(played)


async def test_tools_at_the_same_time_have_a_span_each(bench):
    def script(body):
        if body["messages"][-1]["role"] != "tool":
            call = {"name": TOOL, "arguments": '{"item": "tea"}'}
            return FakeReply(tool_calls=[call, call])
        return FakeReply(text=ANSWER)

    bench.fake.script = script

    async def program(job):
        async with models(job) as model:
            return await reply(agent(model, PLANNER, lookup), job.question)

    played = await bench.one(program)
    assert [span.agent for span in named(played.spans, SpanKind.TOOL)] == [PLANNER, PLANNER]
    assert [call.agent for call in played.calls] == [PLANNER, PLANNER]


async def test_given_without_attaching_it_records_the_same(unattached):
    async def program(job):
        async with models(job) as model:
            tool = FunctionTool(lookup, permission=ALLOWED)
            return await reply(
                agent(model, PLANNER, tool, middlewares=[AglMiddleware()]), job.question
            )

    played = await unattached.one(program)
    assert played.output == ANSWER
    check_identity(played)
    assert len(named(played.spans, SpanKind.TOOL)) == 1


def test_a_version_that_replies_otherwise_is_refused(monkeypatch):
    async def reply(self, message):
        raise NotImplementedError

    monkeypatch.setattr(Agent, "reply", reply)
    with pytest.raises(ConfigError, match=r"Agent\.reply.*inputs"):
        AgentScopeIntegration().attach()
    assert Agent.reply is reply


def test_a_version_of_before_is_refused(monkeypatch):
    monkeypatch.setattr("agl_agentscope._integration.installed", lambda: "0.1.6")
    with pytest.raises(ConfigError, match=r"0\.1\.6 is older"):
        AgentScopeIntegration()


@pytest.mark.parametrize("name", ["PromptBudgetFormatter", "ThinkTagsModel"])
def test_what_is_for_the_other_version_names_its_pip_line(name):
    with pytest.raises(MissingExtraError, match=r"needs agentscope 1.*agl-core\[agentscope1\]"):
        getattr(agl_agentscope, name)
