"""Teams: each agent speaks under its own name, the manager under a reserved one."""

import json

import pytest
from agl_testing._captured import check_identity, check_tokens, triplets
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, WRITER
from autogen_agentchat.agents import MessageFilterAgent
from autogen_agentchat.agents._message_filter_agent import MessageFilterConfig, PerSourceFilter
from autogen_agentchat.base import TerminationCondition
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import (
    DiGraphBuilder,
    GraphFlow,
    MagenticOneGroupChat,
    RoundRobinGroupChat,
    SelectorGroupChat,
    Swarm,
)

from agl_core import semconv
from agl_core.types import SpanKind

from .conftest import SYSTEM

SELECTOR = "@selector"
MANAGER = "@manager"
NAMED = {"chooser": SELECTOR}


def turns(count) -> TerminationCondition:
    return MaxMessageTermination(1 + count)


def speakers(played, bench, names=None):
    if played.error is not None:
        raise played.error
    if names is None:  # what is never trained gets no token ids
        check_tokens(played, bench.fake.log)
    check_identity(played, names=names)
    return [call.agent for call in played.calls]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_round_robin_lets_each_speak_under_its_own_name(bench, agent, tree, streamed):
    async def program(job):
        options = {"model_client_stream": streamed}
        team = RoundRobinGroupChat(
            [agent(job, PLANNER, **options), agent(job, WRITER, **options)],
            termination_condition=turns(3),
        )
        async for message in team.run_stream(task=job.question):
            last = message
        return last.messages[-1].content

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, WRITER, PLANNER]
    assert played.output == ANSWER
    assert tree(played.spans) == [
        "operation RoundRobinGroupChat",
        ". agent planner",
        ". . llm chat",
        ". agent writer",
        ". . llm chat",
        ". agent planner",
        ". . llm chat",
        "reward main",
    ]
    assert len({call.agent_run_id for call in played.calls}) == 3
    assert {call.streamed for call in played.calls} == {streamed}
    assert len(triplets(played, PLANNER)) == 2


def choosing(body):
    if "Read the above conversation" in body["messages"][0]["content"]:
        return FakeReply(text=WRITER)
    return FakeReply(text=ANSWER)


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_selectors_own_call_is_recorded_and_never_trained(
    bench, agent, client, tree, streamed
):
    bench.fake.script = choosing

    async def program(job):
        team = SelectorGroupChat(
            [agent(job, PLANNER), agent(job, WRITER)],
            client(job, "chooser"),
            termination_condition=turns(1),
            model_client_streaming=streamed,
        )
        return (await team.run(task=job.question)).messages[-1].content

    played = await bench.one(program)
    assert speakers(played, bench, NAMED) == [SELECTOR, WRITER]
    assert tree(played.spans) == [
        "operation SelectorGroupChat",
        ". agent @selector",
        ". . llm chat",
        ". agent writer",
        ". . llm chat",
        "reward main",
    ]
    selected, written = played.calls
    assert not selected.trainable
    assert written.trainable
    assert {triplet.agent for triplet in triplets(played, "*")} == {WRITER}


async def test_each_try_of_the_selector_is_a_call_of_its_own(bench, agent, client):
    async def program(job):
        team = SelectorGroupChat(
            [agent(job, PLANNER), agent(job, WRITER)],
            client(job, "chooser"),
            termination_condition=turns(1),
            max_selector_attempts=2,
        )
        await team.run(task=job.question)

    played = await bench.one(program)
    assert speakers(played, bench, NAMED) == [SELECTOR, SELECTOR, PLANNER]
    first, second, _ = played.calls
    assert first.agent_run_id == second.agent_run_id
    assert played.adapt("*").seen >= {PLANNER}


async def test_a_selector_function_asks_no_model_and_adds_no_agent(bench, agent, client, tree):
    async def program(job):
        team = SelectorGroupChat(
            [agent(job, PLANNER), agent(job, WRITER)],
            client(job, "chooser"),
            termination_condition=turns(1),
            selector_func=lambda thread: WRITER,
        )
        await team.run(task=job.question)

    played = await bench.one(program)
    assert speakers(played, bench) == [WRITER]
    assert tree(played.spans)[:2] == ["operation SelectorGroupChat", ". agent writer"]


def handing_over(body):
    tools = body.get("tools") or ()
    if tools:
        name = tools[0]["function"]["name"]
        return FakeReply(tool_calls=[{"name": name, "arguments": "{}"}])
    return FakeReply(text=f"{ANSWER} TERMINATE")


async def test_a_swarm_hands_over_with_a_message(bench, agent, tree):
    bench.fake.script = handing_over

    async def program(job):
        team = Swarm(
            [agent(job, PLANNER, handoffs=[WRITER]), agent(job, WRITER)],
            termination_condition=TextMentionTermination("TERMINATE"),
        )
        return (await team.run(task=job.question)).messages[-1].content

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, WRITER]
    assert tree(played.spans) == [
        "operation Swarm",
        ". agent planner",
        ". . llm chat",
        ". . tool transfer_to_writer",
        ". . message handoff",
        ". agent writer",
        ". . llm chat",
        "reward main",
    ]
    (handoff,) = [span for span in played.spans if span.kind is SpanKind.MESSAGE]
    assert handoff.agent == PLANNER
    assert handoff.attributes[semconv.AGL_HANDOFF_FROM] == PLANNER
    assert handoff.attributes[semconv.AGL_HANDOFF_TO] == WRITER
    assert "Transferred to writer" in handoff.attributes[semconv.AGL_MESSAGE]["content"]


async def test_a_team_in_a_team_stands_below_it(bench, agent, tree):
    async def program(job):
        inner = RoundRobinGroupChat(
            [agent(job, WRITER)], name="desk", description="Writes.", termination_condition=turns(2)
        )
        team = RoundRobinGroupChat([agent(job, PLANNER), inner], termination_condition=turns(2))
        await team.run(task=job.question)

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, WRITER]
    assert tree(played.spans)[3:6] == [". operation desk", ". . agent writer", ". . . llm chat"]


async def test_an_agent_behind_a_filter_keeps_its_name(bench, agent, tree):
    async def program(job):
        only_user = MessageFilterConfig(
            per_source=[PerSourceFilter(source="user", position="first", count=1)]
        )
        filtered = MessageFilterAgent("filtered", agent(job, WRITER), only_user)
        team = RoundRobinGroupChat([filtered], termination_condition=turns(1))
        await team.run(task=job.question)

    played = await bench.one(program)
    assert speakers(played, bench) == [WRITER]
    assert tree(played.spans)[1:4] == [". agent filtered", ". . agent writer", ". . . llm chat"]


async def test_a_teams_error_keeps_the_agents_own_exception_on_its_span(bench, agent):
    bench.fake.fail(1, status=400)

    async def program(job):
        team = RoundRobinGroupChat([agent(job, WRITER)], termination_condition=turns(1))
        await team.run(task=job.question)

    played = await bench.one(program)
    assert isinstance(played.error, RuntimeError)
    failed = {span.name: span for span in played.spans if span.status == "error"}
    for name in ("chat", WRITER):
        assert failed[name].attributes[semconv.EXCEPTION_TYPE] == "openai.BadRequestError"
    assert "RuntimeError" in failed["RoundRobinGroupChat"].error


async def test_a_runtime_started_in_the_rollout_serves_a_team(bench, agent):
    from autogen_core import SingleThreadedAgentRuntime

    async def program(job):
        runtime = SingleThreadedAgentRuntime()
        runtime.start()
        team = RoundRobinGroupChat(
            [agent(job, PLANNER), agent(job, WRITER)],
            termination_condition=turns(2),
            runtime=runtime,
        )
        await team.run(task=job.question)
        await runtime.stop_when_idle()

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, WRITER]


def ledger(next_speaker, *, satisfied):
    """What Magentic-One's orchestrator asks its model for after each turn."""
    answers = {
        "is_request_satisfied": satisfied,
        "is_in_loop": False,
        "is_progress_being_made": True,
        "next_speaker": next_speaker,
        "instruction_or_question": "What does it cost?",
    }
    return json.dumps({name: {"reason": "", "answer": given} for name, given in answers.items()})


def orchestrating(body):
    texts = [str(message["content"]) for message in body["messages"]]
    if "is_request_satisfied" in texts[-1]:
        answered = any(ANSWER in text for text in texts[:-1])
        return FakeReply(text=ledger(WRITER, satisfied=answered))
    return FakeReply(text=ANSWER if texts[0] == SYSTEM else "Ask the writer.")


async def test_magentic_ones_orchestrator_is_the_frameworks_own_and_never_trained(
    bench, agent, client, tree
):
    bench.fake.script = orchestrating

    async def program(job):
        # With structured output, AutoGen has the answer parsed in a form that pydantic warns of.
        model = client(job, "orchestrator", knows={"structured_output": False})
        team = MagenticOneGroupChat([agent(job, PLANNER), agent(job, WRITER)], model)
        return (await team.run(task=job.question)).messages[-1].content

    played = await bench.one(program)
    # Facts, plan and ledger; the turn; the ledger again and the final answer.
    named = {"orchestrator": MANAGER}
    assert speakers(played, bench, named) == [*[MANAGER] * 3, WRITER, *[MANAGER] * 2]
    assert tree(played.spans) == [
        "operation MagenticOneGroupChat",
        ". agent @manager",
        ". . llm chat",
        ". . llm chat",
        ". . llm chat",
        ". agent writer",
        ". . llm chat",
        ". agent @manager",
        ". . llm chat",
        ". . llm chat",
        "reward main",
    ]
    assert [call.trainable for call in played.calls] == [*[False] * 3, True, *[False] * 2]
    assert {triplet.agent for triplet in triplets(played, "*")} == {WRITER}


async def test_a_graph_lets_its_agents_speak_in_the_order_of_its_edges(bench, agent, tree):
    async def program(job):
        planner, writer, critic = (agent(job, name) for name in (PLANNER, WRITER, "critic"))
        graph = DiGraphBuilder()
        for each in (planner, writer, critic):
            graph.add_node(each)
        graph.add_edge(planner, writer).add_edge(writer, critic)
        team = GraphFlow(graph.get_participants(), graph.build())
        return (await team.run(task=job.question)).messages[-1].content

    played = await bench.one(program)
    assert speakers(played, bench) == [PLANNER, WRITER, "critic"]
    assert tree(played.spans) == [
        "operation GraphFlow",
        ". agent planner",
        ". . llm chat",
        ". agent writer",
        ". . llm chat",
        ". agent critic",
        ". . llm chat",
        "reward main",
    ]
    assert {triplet.agent for triplet in triplets(played, "*")} == {PLANNER, WRITER, "critic"}


async def test_agents_that_a_graph_runs_at_once_do_not_mix(bench, agent):
    async def program(job):
        planner, writer, critic = (agent(job, name) for name in (PLANNER, WRITER, "critic"))
        graph = DiGraphBuilder()
        for each in (planner, writer, critic):
            graph.add_node(each)
        graph.add_edge(planner, writer).add_edge(planner, critic)
        team = GraphFlow(graph.get_participants(), graph.build())
        return str((await team.run(task=job.question)).stop_reason)

    played = await bench.one(program)
    first, *others = speakers(played, bench)
    assert (first, sorted(others)) == (PLANNER, ["critic", WRITER])
    by_id = {span.id: span for span in played.spans}
    turns_of = {
        span.agent: by_id[span.parent_id]
        for span in played.spans
        if span.kind is SpanKind.LLM and span.call is None
    }
    assert {name: turn.name for name, turn in turns_of.items()} == {
        name: name for name in (PLANNER, WRITER, "critic")
    }
    assert len({turn.parent_id for turn in turns_of.values()}) == 1
