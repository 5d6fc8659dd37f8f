"""Streams: who speaks is known in every step and nowhere between, however the stream is read."""

import asyncio
import gc

import pytest
from agent_framework import AgentMiddleware, ChatMiddleware
from agent_framework.exceptions import ChatClientException
from agl_testing._captured import check_identity, check_tokens
from agl_testing.scenario import ANSWER, JUDGE, PLANNER, WRITER

from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope, current_scope

from .programs import agent, clients, lookup, streamed


def checked(played, bench, **names):
    if played.error is not None:
        raise played.error
    check_tokens(played, bench.fake.log)
    return check_identity(played, names=names)


async def test_nobody_speaks_between_the_steps(bench):
    async def program(job):
        async with clients(job) as client:
            stream = agent(client, PLANNER, lookup).run(job.question, stream=True)
            return [current_scope() async for _ in stream]

    played = await bench.one(program)
    checked(played, bench)
    assert len(played.output) > 2
    assert set(played.output) == {None}


async def test_what_is_sent_between_the_steps_belongs_to_whoever_reads(bench):
    async def program(job):
        async with clients(job) as client:
            asked = False
            with agent_scope(JUDGE):
                async for _ in agent(client, WRITER).run(job.question, stream=True):
                    if not asked:
                        await client(JUDGE).get_response(["Is it good?"])
                    asked = True

    played = await bench.one(program)
    checked(played, bench)
    assert [call.agent for call in played.calls] == [WRITER, JUDGE]


async def test_two_streams_read_in_turns_by_one_task(bench):
    async def program(job):
        async with clients(job) as client:
            streams = [
                agent(client, name, lookup).run(job.question, stream=True)
                for name in (PLANNER, WRITER)
            ]
            left = list(streams)
            while left:
                for stream in tuple(left):
                    if await anext(stream, None) is None:
                        left.remove(stream)
            return [(await stream.get_final_response()).text for stream in streams]

    played = await bench.one(program)
    checked(played, bench)
    assert played.output == [ANSWER, ANSWER]
    assert sorted(call.agent for call in played.calls[:2]) == [PLANNER, WRITER]
    assert sorted(call.agent for call in played.calls[2:]) == [PLANNER, WRITER]


async def test_a_stream_begun_here_and_read_in_another_task(bench):
    async def program(job):
        async with clients(job) as client:
            with agent_scope("outer"):
                stream = agent(client, PLANNER, lookup).run(job.question, stream=True)
            return (await asyncio.create_task(_read(stream))).text

    played = await bench.one(program)
    checked(played, bench)
    assert played.output == ANSWER


async def _read(stream):
    return await stream.get_final_response()


async def test_a_result_without_reading_is_the_same(bench, tree):
    async def program(job):
        async with clients(job) as client:
            stream = agent(client, PLANNER, lookup).run(job.question, stream=True)
            return (await stream.get_final_response()).text

    played = await bench.one(program)
    checked(played, bench)
    assert tree(played.spans) == [
        "agent planner",
        ". llm planner",
        ". tool lookup",
        ". llm planner",
        "reward main",
    ]


class Buffers(AgentMiddleware):
    async def process(self, context, call_next):
        context.stream_buffer_updates = True
        await call_next()


async def test_updates_that_are_held_back(bench):
    async def program(job):
        async with clients(job) as client:
            planner = agent(client, PLANNER, lookup, middleware=[Buffers()])
            return await streamed(planner, job.question)

    played = await bench.one(program)
    checked(played, bench)
    assert played.output == ANSWER


class Reads(ChatMiddleware):
    """Reads what it hands on, held back or not."""

    def __init__(self, *, held):
        self.held = held

    async def process(self, context, call_next):
        await call_next()
        stream = context.result
        await (stream.buffer_updates() if self.held else stream).get_final_response()


@pytest.mark.parametrize("held", [True, False])
async def test_a_stream_that_middleware_has_read_already(bench, held):
    async def program(job):
        async with clients(job) as client:
            mine = [Reads(held=held)]
            stream = agent(client, WRITER).run(job.question, stream=True, middleware=mine)
            return (await stream.get_final_response()).text

    played = await bench.one(program)
    checked(played, bench)
    assert [span.status for span in played.spans if span.kind.value == "llm"] == ["ok"]


async def test_usage_is_that_of_each_call_and_no_agent_repeats_it(bench):
    async def program(job):
        async with clients(job) as client:
            await streamed(agent(client, PLANNER, lookup), job.question)
            await agent(client, PLANNER, lookup).run(job.question)

    played = await bench.one(program)
    spans = list(checked(played, bench).values())
    for span, answer in zip(spans, bench.fake.log, strict=True):
        assert span.attributes["gen_ai.response.id"] == answer.id
        assert span.attributes["gen_ai.usage.input_tokens"] == answer.usage["prompt_tokens"]
        assert span.attributes["gen_ai.usage.output_tokens"] == answer.usage["completion_tokens"]
        assert span.attributes["gen_ai.request.model"] == played.job.model(PLANNER)
    assert [span.attributes["gen_ai.response.finish_reasons"] for span in spans] == [
        ["tool_calls"],
        ["stop"],
    ] * 2
    agents = [span for span in played.spans if span.kind.value == "agent"]
    assert all("gen_ai.usage.input_tokens" not in span.attributes for span in agents)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
async def test_a_stream_that_is_left_is_incomplete_and_never_trained(bench, closed):
    async def program(job):
        async with clients(job) as client:
            stream = agent(client, WRITER).run(job.question, stream=True)
            async for _ in stream:
                break
            if closed:
                await stream.close()
            del stream
            gc.collect()

    bench.fake.before_send = _first_piece_only
    played = await bench.one(program)
    assert played.error is None
    (call,) = played.calls
    assert call.agent == WRITER
    assert not call.complete
    with pytest.raises(CaptureError):
        played.adapt(WRITER)


async def _first_piece_only(answer, position):
    del answer
    if position > 2:
        await asyncio.Event().wait()


async def test_a_cancelled_task_ends_its_spans_as_errors(bench):
    waiting = asyncio.Event()

    async def before_send(answer, position):
        if position:
            waiting.set()
            await asyncio.Event().wait()

    async def program(job):
        async with clients(job) as client:
            reading = asyncio.create_task(streamed(agent(client, WRITER), job.question))
            await waiting.wait()
            reading.cancel()
            try:
                await reading
            except asyncio.CancelledError:
                return current_scope()

    bench.fake.before_send = before_send
    played = await bench.one(program)
    assert (played.output, played.error) == (None, None)
    shown = [span for span in played.spans if span.kind.value in ("agent", "llm")]
    assert [span.status for span in shown] == ["error", "error"]
    assert all("CancelledError" in span.error for span in shown)


async def test_a_stream_that_breaks_off_ends_with_the_exact_exception(bench):
    async def before_send(answer, position):
        if position > 2:
            raise ConnectionError

    async def program(job):
        async with clients(job) as client:
            await streamed(agent(client, WRITER), job.question)

    bench.fake.before_send = before_send
    played = await bench.one(program)
    assert isinstance(played.error, ChatClientException)
    shown = [span for span in played.spans if span.kind.value in ("agent", "llm")]
    assert len(shown) == 2
    for span in shown:
        assert span.attributes["exception.type"] == _named(played.error)
        assert type(played.error.__cause__).__name__ in span.attributes["exception.stacktrace"]


def _named(error):
    return f"{type(error).__module__}.{type(error).__qualname__}"
