"""Agents of every make, used rightly and wrongly: who speaks, and what is said of it."""

import asyncio
import gc
import logging

import pytest
from agentscope.agent import AgentBase, ReActAgent
from agentscope.formatter import OpenAIMultiAgentFormatter
from agentscope.memory import LongTermMemoryBase
from agentscope.message import ImageBlock, Msg, URLSource
from agentscope.model import OpenAIChatModel
from agentscope.plan import Plan, PlanNotebook, SubTask
from agentscope.rag import KnowledgeBase
from agentscope.token import CharTokenCounter
from agl_agentscope._integration import AgentScopeIntegration
from agl_agentscope._spans import TRACER
from agl_agentscope._usage import CLOCK, FOLDS, INTERRUPTED, SHARED
from agl_testing._captured import check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, WRITER

from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope, attach
from agl_core.types import SpanKind

from .programs import agent, lookup, models, reply, since, text_result, user


def named(spans, kind):
    return [span for span in spans if span.kind is kind and span.call is None]


class Own(AgentBase):
    """What a user writes who needs no tools."""

    def __init__(self, model, name=None):
        super().__init__()
        self.model = model
        if name is not None:
            self.name = name

    async def reply(self, msg):
        answer = await self.model([{"role": "user", "content": msg.get_text_content()}])
        return Msg(getattr(self, "name", "?"), answer.content, "assistant")

    async def observe(self, msg):
        pass

    async def handle_interrupt(self, *args, **kwargs):
        raise TimeoutError("no time left")


async def test_an_agent_of_the_users_own_speaks_for_itself(bench):
    async def program(job):
        async with models(job) as model:
            return await reply(Own(model(WRITER), WRITER), job.question)

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    check_identity(played)
    (span,) = named(played.spans, SpanKind.AGENT)
    assert (span.agent, span.attributes[INTERRUPTED]) == (WRITER, False)


async def test_an_agent_without_a_name_has_that_of_the_scope_around(bench):
    async def program(job):
        async with models(job) as model:
            with agent_scope(WRITER):
                return await reply(Own(model(WRITER)), job.question)

    played = await bench.one(program)
    assert [call.agent for call in played.calls] == [WRITER]


@pytest.mark.parametrize("name", ["forscher/süß 研究", "1号", "a" * 300])
async def test_names_of_any_kind(bench, name):
    async def program(job):
        async with models(job) as model:
            return await reply(agent(lambda _: model(WRITER), name), job.question)

    played = await bench.one(program)
    assert played.output == ANSWER
    assert [call.agent for call in played.calls] == [name]


async def test_an_agent_made_before_attaching_is_recorded(unattached):
    made = {}

    async def make(job):
        made["models"] = models(job)
        model = await made["models"].__aenter__()
        made["agent"] = agent(model, WRITER)

    async def use(job):
        made["agent"].model.model_name = job.model(WRITER)
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


async def test_one_agent_at_the_same_time_is_said_and_each_call_is_its_own(bench, caplog):
    async def program(job):
        async with models(job) as model:
            shared = agent(model, WRITER)
            await asyncio.gather(*(reply(shared, job.question) for _ in range(3)))

    bench.interleave(3)
    played = await bench.one(program)
    assert played.error is None
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert len({call.agent_run_id for call in played.calls}) == 3
    marks = [span.attributes.get(SHARED) for span in named(played.spans, SpanKind.AGENT)]
    assert marks == [None, "concurrent", "concurrent"]
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


async def test_an_agent_whose_memory_was_cleared_is_no_other_rollouts(bench, caplog):
    made = []

    async def program(job):
        async with models(job) as model:
            if not made:
                made.append(agent(model, WRITER))
            made[0].model = model(WRITER)
            await made[0].memory.clear()
            return await reply(made[0], job.question)

    for _ in range(2):
        played = await bench.one(program)
        (span,) = named(played.spans, SpanKind.AGENT)
        assert SHARED not in span.attributes
    assert not caplog.text


async def test_two_agents_of_one_name_are_one_agent_with_two_runs(bench):
    async def program(job):
        async with models(job) as model:
            return [await reply(agent(model, WRITER), job.question) for _ in range(2)]

    played = await bench.one(program)
    assert {call.agent for call in played.calls} == {WRITER}
    assert len({call.agent_run_id for call in played.calls}) == 2


async def test_a_subclass_that_replies_around_its_base_is_one_reply(bench):
    class Polite(ReActAgent):
        async def reply(self, *args, **kwargs):
            return await super().reply(*args, **kwargs)

    async def program(job):
        async with models(job) as model:
            made = agent(model, WRITER)
            made.__class__ = Polite
            return await reply(made, job.question)

    played = await bench.one(program)
    assert played.output == ANSWER
    assert len(named(played.spans, SpanKind.AGENT)) == 1


async def test_the_times_of_a_plan_in_a_prompt_are_said_once(bench, caplog):
    async def program(job):
        async with models(job) as model:
            notebook = PlanNotebook()
            task = SubTask(name="a", description="b", expected_outcome="c")
            notebook.current_plan = Plan(
                name="p", description="d", expected_outcome="e", subtasks=[task]
            )
            writer = agent(model, WRITER, plan_notebook=notebook)
            bench.fake.script = lambda body: FakeReply(text=ANSWER)
            await reply(writer, job.question)
            await reply(writer, job.question)

    with caplog.at_level(logging.WARNING, logger="agl_agentscope"):
        played = await bench.one(program)
    assert played.error is None
    assert "**Created At**: 20" in str(played.calls[0].messages)
    assert [s.attributes.get(CLOCK) for s in named(played.spans, SpanKind.AGENT)] == ["plan"] * 2
    assert caplog.text.count("plan_to_hint") == 1


async def test_a_plan_that_nobody_has_made_tells_no_time(bench):
    async def program(job):
        async with models(job) as model:
            bench.fake.script = lambda body: FakeReply(text=ANSWER)
            return await reply(agent(model, WRITER, plan_notebook=PlanNotebook()), job.question)

    played = await bench.one(program)
    assert played.output == ANSWER
    assert "At**: 20" not in str(played.calls[0].messages)
    (span,) = named(played.spans, SpanKind.AGENT)
    assert CLOCK not in span.attributes


class _Asks(LongTermMemoryBase):
    """A memory over rollouts that asks a model of its own whenever it is used."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    async def retrieve(self, msg, limit=5, **kwargs):
        await self.model([{"role": "user", "content": "what is known?"}])
        return "tea is cheap"

    async def record(self, msgs, **kwargs):
        await self.model([{"role": "user", "content": "what is new?"}])


async def test_what_a_memory_asks_a_model_is_not_the_agents(bench):
    async def program(job):
        async with models(job) as model:
            memory = _Asks(model(JUDGE))
            fields = {"long_term_memory": memory, "long_term_memory_mode": "static_control"}
            return await reply(agent(model, WRITER, **fields), job.question)

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    told = [(call.agent, call.trainable) for call in played.calls]
    assert told == [("@context", False), (WRITER, True), ("@context", False)]


class _Knows(KnowledgeBase):
    def __init__(self):
        pass

    async def retrieve(self, query, limit=5, score_threshold=None, **kwargs):
        return []

    async def add_documents(self, documents, **kwargs):
        raise NotImplementedError


async def test_a_rewritten_query_is_not_the_agents(bench):
    async def program(job):
        async with models(job) as model:
            return await reply(agent(model, WRITER, knowledge=_Knows()), job.question)

    bench.fake.script = lambda body: FakeReply(
        text='{"rewritten_query": "tea"}' if body.get("response_format") else ANSWER
    )
    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    assert [call.agent for call in played.calls] == ["@context", WRITER]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_compression_speaks_as_the_summarizer(bench, stream):
    names = ("task_overview", "current_state", "important_discoveries", "next_steps")
    summary = "{" + ", ".join(f'"{each}": "x"' for each in (*names, "context_to_preserve")) + "}"
    bench.fake.script = lambda body: FakeReply(
        text=summary if body.get("response_format") else ANSWER
    )

    async def program(job):
        async with models(job, stream=stream) as model:
            config = ReActAgent.CompressionConfig(
                enable=True,
                agent_token_counter=CharTokenCounter(),
                trigger_threshold=10,
                keep_recent=1,
            )
            writer = agent(model, WRITER, compression_config=config)
            await writer.observe([user("long " * 40), user("longer " * 40)])
            return await reply(writer, job.question)

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    told = [(call.agent, call.trainable) for call in played.calls]
    assert told == [("@summarizer", False), (WRITER, True)]


async def test_a_formatter_for_several_agents_is_marked(bench):
    async def program(job):
        async with models(job) as model:
            folding = agent(model, WRITER, formatter=OpenAIMultiAgentFormatter())
            return await reply(folding, job.question), await reply(
                agent(model, PLANNER), job.question
            )

    played = await bench.one(program)
    marks = {s.agent: s.attributes[FOLDS] for s in named(played.spans, SpanKind.AGENT)}
    assert marks == {WRITER: True, PLANNER: False}


async def test_a_cancelled_reply_is_an_error_though_the_framework_answers(bench):
    async def program(job):
        async with models(job) as model:

            async def wait(item: str):
                """Wait.

                Args:
                    item (str): the item
                """
                started.set()
                await asyncio.Event().wait()
                return text_result(item)

            started = asyncio.Event()
            task = asyncio.create_task(reply(agent(model, PLANNER, wait), job.question))
            await started.wait()
            task.cancel()
            return await task

    played = await bench.one(program)
    assert "interrupted me" in played.output
    assert all(span.error != "not ended" for span in played.spans)
    (span,) = named(played.spans, SpanKind.AGENT)
    assert (span.status, span.attributes[INTERRUPTED]) == ("error", True)
    assert "cancelled" in span.error
    (tool,) = named(played.spans, SpanKind.TOOL)
    assert (tool.status, "CancelledError" in tool.error) == ("error", True)


async def test_an_agent_that_raises_when_cancelled_raises(bench):
    async def program(job):
        async with models(job) as model:
            started, own = asyncio.Event(), Own(model(WRITER), WRITER)

            async def wait(*args, **kwargs):
                started.set()
                await asyncio.Event().wait()

            own.model = wait
            task = asyncio.create_task(reply(own, job.question))
            await started.wait()
            task.cancel()
            await task

    played = await bench.one(program)
    assert isinstance(played.error, TimeoutError)
    (span,) = named(played.spans, SpanKind.AGENT)
    assert (span.status, "no time left" in span.error) == ("error", True)


async def test_a_stream_that_is_left_is_incomplete_and_never_trained(bench):
    async def before_send(answer, position):
        if position > 2:
            await asyncio.Event().wait()

    async def program(job):
        class Hasty(Own):
            async def reply(self, msg):
                chunks = await self.model([{"role": "user", "content": "?"}])
                chunk = await anext(chunks)
                await chunks.aclose()
                return Msg(self.name, chunk.content, "assistant")

        async with models(job, stream=True) as model:
            await Hasty(model(WRITER), WRITER)(user(job.question))
            gc.collect()

    bench.fake.before_send = before_send
    played = await bench.one(program)
    assert played.error is None
    (call,) = played.calls
    assert (call.agent, call.complete) == (WRITER, False)
    with pytest.raises(CaptureError):
        played.adapt(WRITER)


@since(hasattr(OpenAIChatModel, "_fallback_to_tool_call"), "second way to structured output")
async def test_structured_output_that_a_server_refuses_is_two_calls_of_the_agent(bench):
    """The framework asks again by a tool, within one call of the model."""
    from pydantic import BaseModel

    class Price(BaseModel):
        item: str

    class Asks(Own):
        async def reply(self, msg):
            answer = await self.model([{"role": "user", "content": "?"}], structured_model=Price)
            return Msg(self.name, answer.metadata["item"], "assistant")

    bench.fake.fail(1, status=400, body={"error": {"message": "no response_format"}})

    async def program(job):
        async with models(job) as model:
            return await reply(Asks(model(WRITER), WRITER), job.question)

    played = await bench.one(program)
    assert (played.output, played.error) == ("tea", None)
    assert [(call.agent, call.status_code) for call in played.calls] == [
        (WRITER, 400),
        (WRITER, 200),
    ]
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1


async def test_an_image_in_a_message(bench):
    image = ImageBlock(type="image", source=URLSource(type="url", url="https://example.org/t.png"))

    async def program(job):
        async with models(job) as model:
            return await agent(model, WRITER)(Msg("user", [image], "user"))

    played = await bench.one(program)
    assert played.error is None
    check_identity(played)


async def test_broken_telemetry_leaves_the_agent_alone(bench, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(TRACER, "open", broken)

    async def program(job):
        async with models(job) as model:
            return await reply(agent(model, PLANNER, lookup), job.question)

    with caplog.at_level(logging.CRITICAL):
        played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
