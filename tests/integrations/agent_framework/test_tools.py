"""Calls of tools that reach none, beside those that reach one."""

import pytest
from agl_agent_framework._checks import pitfalls
from agl_testing._captured import check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, TOOL, WRITER

from agl_core import semconv
from agl_core.types import SpanKind

from .programs import agent, clients, lookup, streamed

GOOD = {"name": TOOL, "arguments": '{"item": "tea"}'}
NOPE = {"name": "nope", "arguments": '{"item": "tea"}'}


def asking(*turns):
    """The model's calls of tools, turn by turn, before it says the answer."""
    left = list(turns)
    return lambda body: FakeReply(tool_calls=left.pop(0)) if left else FakeReply(text=ANSWER)


async def run(speaker, text):
    return (await speaker.run(text)).text


def of_kind(played, kind):
    return [span for span in played.spans if span.kind is kind and span.call is None]


@pytest.mark.parametrize("form", [run, streamed])
async def test_a_call_of_an_unknown_name_is_a_failed_one_of_the_agents(bench, form):
    async def program(job):
        async with clients(job) as client:
            return await form(agent(client, PLANNER, lookup), job.question)

    bench.fake.script = asking([NOPE])
    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    check_tokens(played, bench.fake.log)
    check_identity(played)
    (speaker,), (tool,) = of_kind(played, SpanKind.AGENT), of_kind(played, SpanKind.TOOL)
    assert (tool.name, tool.status, '"nope" not found' in tool.error) == ("nope", "error", True)
    assert (tool.parent_id, tool.agent) == (speaker.id, PLANNER)
    assert tool.agent_run_id == played.calls[0].agent_run_id
    assert tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == {"item": "tea"}
    (asked,) = played.calls[1].messages[-2]["tool_calls"]
    assert tool.attributes[semconv.GEN_AI_TOOL_CALL_ID] == asked["id"]
    findings = {each.check: each for each in pitfalls([played.record], None)}
    assert findings["agent_framework.tools"].figures == {
        "failed": 1,
        "used": 1,
        "tools": ["nope"],
    }


@pytest.mark.parametrize("form", [run, streamed])
async def test_a_call_that_reaches_a_tool_has_one_span(bench, form):
    def fails(item: str) -> str:
        """Fail."""
        raise KeyError(item)

    async def program(job):
        async with clients(job) as client:
            return await form(agent(client, PLANNER, lookup, fails), job.question)

    bad, wrong = {**GOOD, "name": "fails"}, {**GOOD, "arguments": "{oops"}
    bench.fake.script = asking([GOOD, NOPE, bad], [GOOD], [wrong, GOOD])
    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    tools = sorted((span.name, span.status) for span in of_kind(played, SpanKind.TOOL))
    assert tools == [
        ("fails", "error"),
        (TOOL, "error"),
        (TOOL, "ok"),
        (TOOL, "ok"),
        (TOOL, "ok"),
        ("nope", "error"),
    ]
    assert {span.agent for span in of_kind(played, SpanKind.TOOL)} == {PLANNER}


async def test_a_later_run_that_reads_of_it_in_its_history_has_not_failed(bench):
    async def program(job):
        async with clients(job) as client:
            planner = agent(client, PLANNER, lookup)
            session = planner.create_session()
            for _ in range(2):
                await planner.run(job.question, session=session)

    bench.fake.script = asking([NOPE])
    played = await bench.one(program)
    assert "not found" in str(played.calls[2].messages)
    (tool,) = of_kind(played, SpanKind.TOOL)
    assert tool.agent_run_id == played.calls[0].agent_run_id != played.calls[2].agent_run_id


async def test_an_agent_in_a_tool_has_its_own(bench):
    """Both ask for a tool that nobody has, the inner one while the outer one's answer is open."""

    async def program(job):
        async with clients(job) as client:
            inner = agent(client, WRITER, lookup).as_tool(name="ask", arg_name="item")
            return await run(agent(client, PLANNER, inner), job.question)

    bench.fake.script = asking([{**GOOD, "name": "ask"}, NOPE], [NOPE])
    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    tools = [(span.name, span.agent, span.status) for span in of_kind(played, SpanKind.TOOL)]
    assert sorted(tools) == [
        ("ask", PLANNER, "ok"),
        ("nope", PLANNER, "error"),
        ("nope", WRITER, "error"),
    ]
