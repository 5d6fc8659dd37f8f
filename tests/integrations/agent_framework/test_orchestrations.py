"""Agents in orchestrations: who speaks, who hands on to whom, streamed and not."""

import json

import pytest
from agent_framework import AgentResponse
from agent_framework.orchestrations import (
    ConcurrentBuilder,
    GroupChatBuilder,
    HandoffBuilder,
    SequentialBuilder,
)
from agl_testing._captured import check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, WRITER

from agl_core import semconv
from agl_core.types import SpanKind

from .programs import agent, clients, lookup

pytestmark = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
EDITOR = "editor"


async def run(workflow, text, *, stream):
    if not stream:
        return await workflow.run(text)
    return [event async for event in workflow.run(text, stream=True)]


def checked(played, bench):
    if played.error is not None:
        raise played.error
    check_tokens(played, bench.fake.log)
    return check_identity(played)


async def test_sequential(bench, tree, stream):
    async def program(job):
        async with clients(job) as client:
            agents = [agent(client, PLANNER, lookup), agent(client, WRITER)]
            await run(SequentialBuilder(participants=agents).build(), job.question, stream=stream)

    played = await bench.one(program)
    checked(played, bench)
    assert tree(played.spans, "agent", "llm", "tool") == [
        "agent planner",
        ". llm planner",
        ". tool lookup",
        ". llm planner",
        "agent writer",
        ". llm writer",
    ]
    assert {call.streamed for call in played.calls} == {stream}
    assert played.adapt(WRITER).trajectories.keys() == {WRITER}


async def test_concurrent(bench, tree, stream):
    async def program(job):
        async with clients(job) as client:
            agents = [agent(client, PLANNER), agent(client, WRITER)]
            await run(ConcurrentBuilder(participants=agents).build(), job.question, stream=stream)

    bench.interleave(2)
    played = await bench.one(program)
    spans = checked(played, bench)
    assert sorted(tree(played.spans, "agent")) == ["agent planner", "agent writer"]
    runs = {span.agent: span.id for span in played.spans if span.kind is SpanKind.AGENT}
    assert all(span.parent_id == runs[span.agent] for span in spans.values())


def hands_on(body):
    """The planner looks something up, then hands on; the writer answers."""
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    if f"handoff_to_{WRITER}" not in names:
        return FakeReply(text=ANSWER)
    if body["messages"][-1]["role"] != "tool":
        return FakeReply(tool_calls=[{"name": "lookup", "arguments": {"item": "tea"}}])
    return FakeReply(tool_calls=[{"name": f"handoff_to_{WRITER}", "arguments": {}}])


async def test_handoff(bench, tree, stream):
    bench.fake.script = hands_on

    async def program(job):
        async with clients(job) as client:
            planner, writer = agent_here(client, PLANNER, lookup), agent_here(client, WRITER)
            builder = HandoffBuilder(participants=[planner, writer]).with_start_agent(planner)
            await run(builder.build(), job.question, stream=stream)

    played = await bench.one(program)
    checked(played, bench)
    assert tree(played.spans, "agent", "llm", "tool", "message") == [
        "agent planner",
        ". llm planner",
        ". tool lookup",
        ". llm planner",
        ". tool handoff_to_writer",
        ". message handoff",
        "agent writer",
        ". llm writer",
    ]
    (handoff,) = [span for span in played.spans if span.name == "handoff"]
    assert handoff.agent == PLANNER
    assert handoff.attributes[semconv.AGL_HANDOFF_FROM] == PLANNER
    assert handoff.attributes[semconv.AGL_HANDOFF_TO] == WRITER
    assert handoff.status == "ok"
    tool = next(span for span in played.spans if span.name == "handoff_to_writer")
    assert json.loads(tool.attributes[semconv.GEN_AI_TOOL_RESULT]) == {"handoff_to": WRITER}


def agent_here(client, name, *tools):
    return agent(client, name, *tools, require_per_service_call_history_persistence=True)


def edits(body):
    """The editor lets the writer speak once, then ends."""
    if "response_format" not in body:
        return FakeReply(text=ANSWER)
    spoken = ANSWER in json.dumps(body["messages"])
    decision = {
        "terminate": spoken,
        "reason": "because",
        "next_speaker": None if spoken else WRITER,
        "final_message": "done" if spoken else None,
    }
    return FakeReply(text=json.dumps(decision))


async def test_group_chat(bench, tree, stream):
    bench.fake.script = edits

    async def program(job):
        async with clients(job) as client:
            chat = GroupChatBuilder(
                participants=[agent(client, WRITER), agent(client, PLANNER)],
                orchestrator_agent=agent(client, EDITOR),
            ).build()
            await run(chat, job.question, stream=stream)

    played = await bench.one(program)
    checked(played, bench)
    assert tree(played.spans, "agent", "llm") == [
        "agent editor",
        ". llm editor",
        "agent writer",
        ". llm writer",
        "agent editor",
        ". llm editor",
    ]
    assert len({call.agent_run_id for call in played.calls}) == 3
    assert played.adapt(WRITER).trajectories.keys() == {WRITER}


async def test_a_workflow_as_an_agent(bench, tree, stream):
    async def program(job):
        async with clients(job) as client:
            agents = [agent(client, PLANNER), agent(client, WRITER)]
            inner = SequentialBuilder(participants=agents).build().as_agent(name="shop")
            if not stream:
                return await inner.run(job.question)
            updates = [update async for update in inner.run(job.question, stream=True)]
            return AgentResponse.from_updates(updates)

    played = await bench.one(program)
    checked(played, bench)
    assert tree(played.spans, "agent", "llm") == [
        "agent planner",
        ". llm planner",
        "agent writer",
        ". llm writer",
    ]
