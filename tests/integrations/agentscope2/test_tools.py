"""Calls of tools: those that reach one have its span, those that reach none say why."""

import pytest
from agentscope.event import ConfirmResult, RequireUserConfirmEvent, UserConfirmResultEvent
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool
from agl_agentscope._checks import pitfalls
from agl_testing._captured import check_identity, check_tokens
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, TOOL, TOOL_RESULT

from agl_core import semconv
from agl_core.types import SpanKind

from .programs import agent, lookup, models, reply, streamed, user

GOOD = {"name": TOOL, "arguments": '{"item": "tea"}'}
UNREACHED = {
    "unknown": ({"name": "nope", "arguments": "{}"}, {}, "doesn't exist"),
    "no JSON": ({"name": TOOL, "arguments": "{oops"}, "{oops", "JSONDecodeError"),
    "no object": ({"name": TOOL, "arguments": "[1]"}, [1], "dict object is expected"),
    "wrong": ({"name": TOOL, "arguments": "{}"}, {}, "'item' is a required property"),
}


def asking(*turns):
    """The model's calls of tools, turn by turn, before it says the answer."""
    left = list(turns)
    return lambda body: FakeReply(tool_calls=left.pop(0)) if left else FakeReply(text=ANSWER)


def of_kind(played, kind):
    return [span for span in played.spans if span.kind is kind and span.call is None]


def found(played):
    return {finding.check: finding for finding in pitfalls([played.record], None)}


@pytest.mark.parametrize("form", [reply, streamed])
@pytest.mark.parametrize("why", UNREACHED)
async def test_a_call_that_reaches_no_tool_is_a_failed_one_of_the_agents(bench, why, form):
    call, arguments, words = UNREACHED[why]
    bench.fake.script = asking([call])

    async def program(job):
        async with models(job, stream=form is streamed) as model:
            return await form(agent(model, PLANNER, lookup), job.question)

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    check_tokens(played, bench.fake.log)
    check_identity(played)
    (speaker,), (tool,) = of_kind(played, SpanKind.AGENT), of_kind(played, SpanKind.TOOL)
    assert (tool.name, tool.status, words in tool.error) == (call["name"], "error", True)
    assert (tool.parent_id, tool.agent) == (speaker.id, PLANNER)
    assert tool.agent_run_id == speaker.agent_run_id == played.calls[0].agent_run_id
    assert tool.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == arguments
    assert tool.attributes[semconv.GEN_AI_TOOL_RESULT] == tool.error
    (asked,) = played.calls[1].messages[-2]["tool_calls"]
    assert tool.attributes[semconv.GEN_AI_TOOL_CALL_ID] == asked["id"]
    assert found(played)["agentscope.tools"].figures == {
        "failed": 1,
        "used": 1,
        "tools": [call["name"]],
    }


async def test_beside_and_after_them_a_call_that_reaches_one_has_one_span(bench):
    nope = UNREACHED["unknown"][0]
    bench.fake.script = asking([GOOD, nope], [nope, GOOD])

    async def program(job):
        async with models(job) as model:
            return await reply(agent(model, PLANNER, lookup), job.question)

    played = await bench.one(program)
    assert played.error is None
    tools = of_kind(played, SpanKind.TOOL)
    assert sorted((span.name, span.status) for span in tools) == [
        (TOOL, "ok"),
        (TOOL, "ok"),
        ("nope", "error"),
        ("nope", "error"),
    ]
    assert {span.agent for span in tools} == {PLANNER}


async def test_a_call_that_is_denied_reaches_none(bench):
    denied = PermissionDecision(behavior=PermissionBehavior.DENY, message="not today")
    bench.fake.script = asking([GOOD])

    async def program(job):
        async with models(job) as model:
            tool = FunctionTool(lookup, permission=denied)
            return await reply(agent(model, PLANNER, tool), job.question)

    played = await bench.one(program)
    (tool,) = of_kind(played, SpanKind.TOOL)
    assert (played.output, tool.status, "not today" in tool.error) == (ANSWER, "error", True)


async def test_a_reply_that_waits_for_a_permission_is_said(bench):
    bench.fake.script = asking([GOOD])

    async def program(job):
        async with models(job) as model:
            return await reply(agent(model, PLANNER, FunctionTool(lookup)), job.question)

    played = await bench.one(program)
    assert "waiting for your permission" in played.output
    parked = found(played)["agentscope.parked"]
    assert parked.severity == "warning"
    assert parked.figures == {"replies": 1, "agents": [PLANNER], "tools": [TOOL]}
    assert "permission=PermissionDecision(" in parked.fix


@pytest.mark.parametrize("confirmed", [True, False])
async def test_one_that_goes_on_when_the_user_has_answered_is_not(bench, confirmed):
    bench.fake.script = asking([GOOD])

    async def program(job):
        async with models(job) as model:
            planner = agent(model, PLANNER, FunctionTool(lookup))
            events = [event async for event in planner.reply_stream(user(job.question))]
            (asks,) = [each for each in events if isinstance(each, RequireUserConfirmEvent)]
            results = [ConfirmResult(confirmed=confirmed, tool_call=asks.tool_calls[0])]
            answer = UserConfirmResultEvent(reply_id=asks.reply_id, confirm_results=results)
            return (await planner.reply(answer)).get_text_content()

    played = await bench.one(program)
    assert (played.output, played.error) == (ANSWER, None)
    check_identity(played)
    assert found(played)["agentscope.parked"].severity == "ok"
    (tool,) = of_kind(played, SpanKind.TOOL)
    assert (tool.status, tool.agent) == ("ok" if confirmed else "error", PLANNER)
    assert (TOOL_RESULT if confirmed else "denied by user") in str(
        tool.attributes[semconv.GEN_AI_TOOL_RESULT]
    )
    assert len({span.agent_run_id for span in of_kind(played, SpanKind.AGENT)}) == 1
