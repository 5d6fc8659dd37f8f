"""Hubs and pipelines: who hears whom, and where each agent's reply hangs."""

import asyncio

import pytest
from agentscope.agent import AgentBase
from agentscope.formatter import OpenAIMultiAgentFormatter
from agentscope.message import Msg, TextBlock, ThinkingBlock
from agentscope.pipeline import (
    FanoutPipeline,
    MsgHub,
    SequentialPipeline,
    fanout_pipeline,
    sequential_pipeline,
)
from agl_agentscope._integration import AgentScopeIntegration
from agl_testing._captured import ancestors, check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, WRITER

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope, attach
from agl_core.types import SpanKind

from .programs import agent, models, reply, text_result, user


def named(spans, kind):
    return [span for span in spans if span.kind is kind and span.call is None]


def said(played):
    """Messages as (sender, hearers, text)."""
    return [
        (
            span.attributes[semconv.AGL_HANDOFF_FROM],
            span.attributes[semconv.AGL_HANDOFF_TO],
            span.attributes[semconv.AGL_MESSAGE]["content"],
        )
        for span in named(played.spans, SpanKind.MESSAGE)
    ]


def three(model, **fields):
    return [
        agent(model, name, formatter=OpenAIMultiAgentFormatter(), **fields)
        for name in (PLANNER, WRITER, JUDGE)
    ]


async def test_what_is_said_in_a_hub_is_a_message_to_all_others(bench, tree):
    async def program(job):
        async with models(job) as model:
            planner, writer, judge = three(model)
            announcement = Msg("host", job.question, "user")
            async with MsgHub([planner, writer, judge], announcement, name="table"):
                await planner()
                await writer()
            await judge()

    played = await bench.one(program)
    assert played.error is None
    check_tokens(played, bench.fake.log)
    check_identity(played)
    assert said(played) == [
        ("host", [PLANNER, WRITER, JUDGE], played.job.question),
        (PLANNER, [WRITER, JUDGE], ANSWER),
        (WRITER, [PLANNER, JUDGE], ANSWER),
    ]
    assert tree(played.spans, "operation", "agent", "message", "llm") == [
        "operation hub",
        ". message broadcast",
        f". agent {PLANNER}",
        f". . llm {PLANNER}",
        ". . message broadcast",
        f". agent {WRITER}",
        f". . llm {WRITER}",
        ". . message broadcast",
        f"agent {JUDGE}",
        f". llm {JUDGE}",
    ]
    (hub,) = named(played.spans, SpanKind.OPERATION)
    assert hub.attributes["agl.agentscope.hub"] == "table"
    assert hub.attributes["agl.agentscope.participants"] == [PLANNER, WRITER, JUDGE]
    heard = str(played.calls[2].messages)
    assert f"{PLANNER}: {ANSWER}" in heard
    assert f"{WRITER}: {ANSWER}" in heard


async def test_hubs_lie_inside_of_each_other(bench, tree):
    async def program(job):
        async with models(job) as model:
            planner, writer, judge = three(model)
            async with MsgHub([planner, writer, judge]):
                await planner(user(job.question))
                async with MsgHub([writer, judge], name="private") as private:
                    private.set_auto_broadcast(enable=False)
                    await writer()
                    await private.broadcast([Msg("host", "hush", "user"), Msg("host", "!", "user")])
                await judge()

    played = await bench.one(program)
    assert played.error is None
    check_identity(played)
    assert tree(played.spans, "operation", "agent", "message") == [
        "operation hub",
        f". agent {PLANNER}",
        ". . message broadcast",
        ". operation hub",
        f". . agent {WRITER}",
        ". . . message broadcast",
        ". . message broadcast",
        ". . message broadcast",
        f". agent {JUDGE}",
        ". . message broadcast",
    ]
    assert [(sender, text) for sender, _, text in said(played)] == [
        (PLANNER, ANSWER),
        (WRITER, ANSWER),
        ("host", "hush"),
        ("host", "!"),
        (JUDGE, ANSWER),
    ]


async def test_agents_at_the_same_time_in_a_hub_have_their_own_spans(bench):
    async def program(job):
        async with models(job) as model:
            agents = three(model)
            async with MsgHub(agents, Msg("host", job.question, "user")):
                answers = await asyncio.gather(*(each() for each in agents))
            return [answer.get_text_content() for answer in answers]

    bench.interleave(3)
    played = await bench.one(program)
    assert played.output == [ANSWER] * 3
    check_tokens(played, bench.fake.log)
    spans = check_identity(played)
    (hub,) = named(played.spans, SpanKind.OPERATION)
    for call in played.calls:
        own, above = ancestors(played.spans, spans[call.id])
        assert (own.kind, own.agent) == (SpanKind.AGENT, call.agent)
        assert above.id == hub.id
    for span in named(played.spans, SpanKind.MESSAGE)[1:]:
        above = ancestors(played.spans, span)[0]
        assert above.agent == span.attributes[semconv.AGL_HANDOFF_FROM]


async def test_a_rollout_beside_it_has_nothing_of_a_hub(bench):
    async def program(job):
        async with models(job) as model:
            planner, writer, _ = three(model)
            async with MsgHub([planner, writer], Msg("host", job.question, "user")):
                await planner()
                return (await writer()).get_text_content()

    bench.interleave(8)
    for played in await bench.play(program, rollouts=8):
        assert (played.output, played.error) == (ANSWER, None)
        check_identity(played)
        assert len(named(played.spans, SpanKind.OPERATION)) == 1
        assert [sender for sender, *_ in said(played)] == ["host", PLANNER, WRITER]


async def test_a_hub_that_rollouts_share_is_one_for_each(bench, tree):
    shared, inside, entered = MsgHub([]), [], asyncio.Event()

    async def program(job):
        async with models(job) as model:
            async with shared:
                inside.append(job)
                if len(inside) == 2:
                    entered.set()
                await entered.wait()
                await reply(agent(model, WRITER), job.question)
            await reply(agent(model, PLANNER), job.question)

    for played in await bench.play(program, rollouts=2):
        assert played.error is None
        assert tree(played.spans, "operation", "agent") == [
            "operation hub",
            f". agent {WRITER}",
            f"agent {PLANNER}",
        ]
        (hub,) = named(played.spans, SpanKind.OPERATION)
        assert (hub.status, hub.error) == ("ok", "")


async def test_an_exception_leaves_the_hub_ended(bench):
    error = ValueError("the game is over")

    async def program(job):
        async with models(job) as model:
            agents = three(model)
            async with MsgHub(agents):
                raise error

    played = await bench.one(program)
    assert played.error is error
    (hub,) = named(played.spans, SpanKind.OPERATION)
    assert (hub.status, "the game is over" in hub.error) == ("error", True)


async def test_a_hub_that_cannot_be_entered_is_ended(bench):
    class Deaf(AgentBase):
        async def observe(self, msg):
            raise ValueError("deaf")

    async def program(job):
        async with MsgHub([Deaf(), Deaf()], Msg("host", "hello", "user")):
            pass

    played = await bench.one(program)
    assert isinstance(played.error, ValueError)
    (hub,) = named(played.spans, SpanKind.OPERATION)
    assert (hub.status, "deaf" in hub.error) == ("error", True)


async def test_thoughts_are_not_in_what_the_others_hear(bench):
    class Thinks(AgentBase):
        name = PLANNER

        async def reply(self):
            thought = ThinkingBlock(type="thinking", thinking="hm")
            return Msg(PLANNER, [thought, TextBlock(type="text", text="42")], "assistant")

    async def program(job):
        async with models(job) as model:
            writer = agent(model, WRITER)
            async with MsgHub([Thinks(), writer]) as hub:
                await hub.participants[0]()

    played = await bench.one(program)
    assert said(played) == [(PLANNER, [WRITER], "42")]


async def test_a_model_that_is_asked_while_hearing_is_nobodys(bench):
    class Nods(AgentBase):
        name = "listener"

        def __init__(self, model):
            super().__init__()
            self.model = model

        async def observe(self, msg):
            await self.model([{"role": "user", "content": "is that so?"}])

    async def program(job):
        async with models(job) as model:
            planner = agent(model, PLANNER)
            async with MsgHub([planner, Nods(model(JUDGE))]):
                await planner(user(job.question))

    played = await bench.one(program)
    assert played.error is None
    check_identity(played, names={JUDGE: None})


async def test_a_hub_in_the_reply_of_an_agent_leaves_the_speaker_as_it_is(bench):
    class Host(AgentBase):
        name = "host"

        def __init__(self, model, guests):
            super().__init__()
            self.model, self.guests = model, guests

        async def reply(self, msg):
            async with MsgHub(self.guests, msg):
                for guest in self.guests:
                    await guest()
                answer = await self.model([{"role": "user", "content": "sum up"}])
            return Msg("host", answer.content, "assistant")

    async def program(job):
        async with models(job) as model:
            guests = [agent(model, PLANNER), agent(model, WRITER)]
            await Host(model("host"), guests)(user(job.question))

    played = await bench.one(program)
    assert played.error is None
    spans = check_identity(played)
    assert [call.agent for call in played.calls] == [PLANNER, WRITER, "host"]
    for call in played.calls[:2]:
        agents = [
            each.agent
            for each in ancestors(played.spans, spans[call.id])
            if each.kind is SpanKind.AGENT
        ]
        assert agents == [call.agent, "host"]


async def test_a_hub_that_is_left_in_another_task_closes(bench, tree):
    async def program(job):
        async with models(job) as model:
            planner, writer, _ = three(model)
            hub = MsgHub([planner, writer])
            await hub.__aenter__()
            await asyncio.create_task(hub.__aexit__(None, None, None))
            await planner(user(job.question))

    played = await bench.one(program)
    assert played.error is None
    assert tree(played.spans, "operation", "agent") == ["operation hub", f"agent {PLANNER}"]


@pytest.mark.parametrize("form", ["function", "class"])
async def test_a_sequential_pipeline_is_one_agent_after_the_other(bench, tree, form):
    async def program(job):
        async with models(job) as model:
            agents = [agent(model, PLANNER), agent(model, WRITER)]
            if form == "function":
                message = await sequential_pipeline(agents, user(job.question))
            else:
                message = await SequentialPipeline(agents)(user(job.question))
            return message.get_text_content()

    played = await bench.one(program)
    assert played.output == ANSWER
    check_identity(played)
    assert tree(played.spans, "agent", "llm") == [
        f"agent {PLANNER}",
        f". llm {PLANNER}",
        f"agent {WRITER}",
        f". llm {WRITER}",
    ]


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("form", ["function", "class"])
async def test_a_fanout_pipeline_keeps_its_agents_apart(bench, form, gather):
    async def program(job):
        async with models(job) as model:
            agents = three(model)
            with agent_scope("host"):
                if form == "function":
                    answers = await fanout_pipeline(
                        agents, user(job.question), enable_gather=gather
                    )
                else:
                    answers = await FanoutPipeline(agents, gather)(user(job.question))
            return [answer.get_text_content() for answer in answers]

    if gather:
        bench.interleave(3)
    played = await bench.one(program)
    assert played.output == [ANSWER] * 3
    check_tokens(played, bench.fake.log)
    spans = check_identity(played)
    for call in played.calls:
        above = [each.agent for each in ancestors(played.spans, spans[call.id])]
        assert above == [call.agent, "host"]


async def test_a_tool_that_opens_a_hub_has_it_under_its_span(bench, tree):
    async def program(job):
        async with models(job) as model:
            guests = [agent(model, WRITER), agent(model, JUDGE)]

            async def discuss(item: str):
                """Discuss it.

                Args:
                    item (str): what
                """
                async with MsgHub(guests, Msg("host", item, "user")):
                    answers = [await guest() for guest in guests]
                return text_result(answers[-1].get_text_content())

            await agent(model, PLANNER, discuss)(user(job.question))

    def script(body):
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            return FakeReply(tool_calls=[{"name": "discuss", "arguments": '{"item": "tea"}'}])
        return FakeReply(text=ANSWER)

    bench.fake.script = script
    played = await bench.one(program)
    assert played.error is None
    check_identity(played)
    assert tree(played.spans, "operation", "agent", "tool") == [
        f"agent {PLANNER}",
        ". tool discuss",
        ". . operation hub",
        f". . . agent {WRITER}",
        f". . . agent {JUDGE}",
    ]


async def test_a_hub_outside_a_rollout_is_a_hub(unattached):
    heard = []

    class Notes(AgentBase):
        async def observe(self, msg):
            heard.append(msg.content)

    async with MsgHub([Notes(), Notes()], Msg("host", "hello", "user")):
        pass
    assert heard == ["hello"] * 2


async def test_a_version_that_keeps_the_others_elsewhere_loses_the_messages_alone(
    unattached, monkeypatch, caplog
):
    """Which agents are in a hub is private; the program goes on, and the attempt says what it lacks."""

    async def broadcast(agent, msg):
        return None

    monkeypatch.setattr(AgentBase, "_broadcast_to_subscribers", broadcast)
    attachment = attach(integrations=[AgentScopeIntegration()])

    async def program(job):
        async with models(job) as model:
            writer = agent(model, WRITER)
            del writer._subscribers
            return await reply(writer, job.question)

    try:
        with caplog.at_level("CRITICAL"):
            played = await unattached.one(program)
    finally:
        attachment.detach()
    assert (played.output, played.error) == (ANSWER, None)
    with pytest.raises(CaptureError, match="_subscribers"):
        played.adapt(WRITER)
