"""Errors and bad input: they arrive as they are, and nothing of them is trained."""

import asyncio

import openai
import pytest
from agents import Agent, ModelBehaviorError, Runner, UserError, function_tool
from agl_testing._captured import check_identity, triplets
from agl_testing.fake_openai import FakeReply
from agl_testing.scenario import ANSWER, PLANNER, TOOL_RESULT, WRITER

from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.types import SpanKind

MANY = 10_000_000


class ShopError(Exception):
    """What the user's code raises."""


def one_of(played, kind):
    (span,) = [span for span in played.spans if span.kind is kind]
    return span


def tool_that(act, **options):
    @function_tool(name_override="lookup", **options)
    def lookup(item: str) -> str:
        """Look up what an item costs."""
        return act()

    return lookup


def closed():
    raise ShopError("the shop is closed")


async def test_a_tools_own_exception_is_on_its_span(bench, agent):
    async def program(job):
        broken = tool_that(closed, failure_error_function=None)
        await Runner.run(agent(job, PLANNER, tools=[broken]), job.question)

    played = await bench.one(program)
    assert isinstance(played.error, UserError)
    assert isinstance(played.error.__cause__, ShopError)
    span = one_of(played, SpanKind.TOOL)
    assert (span.status, span.error) == ("error", "ShopError: the shop is closed")
    assert span.attributes[semconv.EXCEPTION_TYPE].endswith("test_input.ShopError")
    assert "in closed" in span.attributes[semconv.EXCEPTION_STACKTRACE]
    assert one_of(played, SpanKind.AGENT).attributes[semconv.EXCEPTION_TYPE].endswith("UserError")


async def test_a_tools_exception_that_only_the_model_is_told_fails_the_tool_alone(bench, agent):
    async def program(job):
        told = tool_that(closed, failure_error_function=lambda context, error: str(error))
        await Runner.run(agent(job, PLANNER, tools=[told]), job.question)

    played = await bench.one(program)
    assert played.error is None
    span = one_of(played, SpanKind.TOOL)
    assert span.status == "error"
    assert "the shop is closed" in span.error
    assert span.attributes[semconv.GEN_AI_TOOL_RESULT] == "the shop is closed"
    assert one_of(played, SpanKind.AGENT).status == "ok"
    assert len(triplets(played, PLANNER)) == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_refused_request_ends_its_spans_as_errors(bench, agent, streamed):
    bench.fake.fail(1, status=400)

    async def program(job):
        if not streamed:
            return await Runner.run(agent(job, WRITER), job.question)
        result = Runner.run_streamed(agent(job, WRITER), job.question)
        return [event async for event in result.stream_events()]

    played = await bench.one(program)
    assert isinstance(played.error, openai.BadRequestError)
    for kind in (SpanKind.LLM, SpanKind.AGENT):
        span = one_of(played, kind)
        assert (span.status, span.agent) == ("error", WRITER)
        assert span.attributes[semconv.EXCEPTION_TYPE] == "openai.BadRequestError"


async def test_an_exception_that_is_being_handled_outside_is_none_of_the_agents(bench, agent):
    async def program(job):
        try:
            closed()
        except ShopError:
            return (await Runner.run(agent(job, WRITER), job.question)).final_output

    played = await bench.one(program)
    assert played.output == ANSWER
    assert {span.status for span in played.spans} == {"ok"}


async def test_a_cancelled_run_ends_its_spans_as_errors(bench, agent):
    asked = asyncio.Event()

    async def hold(answer, position):
        asked.set()
        await asyncio.Event().wait()

    bench.fake.before_send = hold

    async def program(job):
        task = asyncio.create_task(Runner.run(agent(job, WRITER), job.question))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    played = await bench.one(program)
    assert played.error is None
    for kind in (SpanKind.LLM, SpanKind.AGENT):
        assert one_of(played, kind).error.startswith("CancelledError")
    assert [call.complete for call in played.calls] == [False]
    assert triplets(played, "*") == []


async def test_a_stream_that_is_abandoned_is_incomplete_and_not_trained(bench, agent):
    async def hold(answer, position):
        if position == 3:
            await asyncio.Event().wait()

    bench.fake.before_send = hold

    async def program(job):
        result = Runner.run_streamed(agent(job, WRITER), job.question)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                result.cancel()
                break

    played = await bench.one(program)
    assert played.error is None
    assert [call.complete for call in played.calls] == [False]
    assert {call.agent for call in played.calls} == {WRITER}
    with pytest.raises(CaptureError, match="incomplete"):
        played.adapt(WRITER)


async def test_arguments_that_are_no_json_are_kept_as_text(bench, agent):
    def script(body):
        if body["messages"][-1]["role"] == "tool":
            return FakeReply(text=ANSWER)
        return FakeReply(tool_calls=[{"name": "lookup", "arguments": "{tea"}])

    bench.fake.script = script

    async def program(job):
        lookup = tool_that(lambda: TOOL_RESULT, failure_error_function=None)
        return await Runner.run(agent(job, PLANNER, tools=[lookup]), job.question)

    played = await bench.one(program)
    assert isinstance(played.error, ModelBehaviorError)
    span = one_of(played, SpanKind.TOOL)
    assert span.status == "error"
    assert span.attributes[semconv.GEN_AI_TOOL_ARGUMENTS] == "{tea"


async def test_an_image_in_a_message_passes(bench, agent):
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}

    async def program(job):
        content = [{"type": "input_text", "text": job.question}, image]
        result = await Runner.run(agent(job, WRITER), [{"role": "user", "content": content}])
        return result.final_output

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    check_identity(played)
    sent = played.calls[0].messages[-1]["content"]
    assert [part["type"] for part in sent] == ["text", "image_url"]


async def test_ten_megabytes_from_a_tool_arrive_whole_and_are_cut_on_the_span(bench, agent):
    async def program(job):
        lookup = tool_that(lambda: "x" * MANY)
        planner = agent(job, PLANNER, tools=[lookup], tool_use_behavior="stop_on_first_tool")
        return (await Runner.run(planner, job.question)).final_output

    played = await bench.one(program)
    assert played.output == "x" * MANY
    assert len(one_of(played, SpanKind.TOOL).attributes[semconv.GEN_AI_TOOL_RESULT]) < MANY


@pytest.mark.parametrize("name", ["shop/writer", "作家 é", "a\nb", "%2F"])
async def test_any_name_is_told(bench, agent, name):
    async def program(job):
        return (await Runner.run(agent(job, name), job.question)).final_output

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert [call.agent for call in played.calls] == [name]
    assert [each.agent for each in triplets(played, name)] == [name]


async def test_two_agents_of_one_name_are_one_agent_in_two_runs(bench, agent):
    async def program(job):
        for _ in range(2):
            await Runner.run(agent(job, WRITER), job.question)

    played = await bench.one(program)
    assert [call.agent for call in played.calls] == [WRITER, WRITER]
    assert len({call.agent_run_id for call in played.calls}) == 2


async def test_an_agent_without_a_name_is_nobody(bench, agent):
    async def program(job):
        return (await Runner.run(agent(job, "", called=WRITER), job.question)).final_output

    played = await bench.one(program)
    if played.error is not None:
        raise played.error
    assert [call.agent for call in played.calls] == [""]
    check_identity(played, names={WRITER: None})


def test_a_name_that_is_no_text_is_the_frameworks_error():
    with pytest.raises(TypeError, match="name"):
        Agent(name=7)
