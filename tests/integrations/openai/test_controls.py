"""The golden skeleton, odd inputs, and records that are wrong in one way each: somebody notices."""

import asyncio
from pathlib import Path

import msgspec
import openai
import pytest
from agl_openai._integration import OpenAIIntegration
from agl_testing._captured import check_identity, check_tokens
from agl_testing.bench import Bench
from agl_testing.scenario import ANSWER, PLANNER, WRITER, outline

from agl_core.errors import CaptureError
from agl_core.tracing import agent_scope, attach
from agl_core.types import SpanKind

from . import test_contract
from .test_contract import OpenAIProgram

GOLDEN = Path(__file__).parent / "golden" / "skeleton.txt"
SWAPPED = {PLANNER: WRITER, WRITER: PLANNER}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[OpenAIIntegration()]) as bench:
        yield bench


class Broken(test_contract.TestOpenAI):
    """One rule at a time is run by hand."""

    __test__ = False


def messages_of(job):
    return [{"role": "user", "content": job.question}]


def asking(job, name=WRITER, *, stream=False):
    with openai.OpenAI(base_url=job.base_url, api_key=job.api_key) as client, agent_scope(name):
        given = {"model": job.model(WRITER), "messages": messages_of(job)}
        if not stream:
            return client.chat.completions.create(**given).choices[0].message.content
        with client.chat.completions.create(**given, stream=True) as chunks:
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.parametrize("form", ["run", "arun", "stream", "astream"])
async def test_the_skeleton_is_the_golden_one(bench, form):
    played = await bench.one(getattr(OpenAIProgram(), form))
    assert played.error is None
    assert outline(played.spans) == GOLDEN.read_text(encoding="utf-8").splitlines()


async def test_swapped_agents_are_caught(monkeypatch):
    monkeypatch.setattr(
        test_contract, "agent_scope", lambda name: agent_scope(SWAPPED.get(name, name))
    )
    with pytest.raises(AssertionError):
        await Broken().test_one_span_per_call_with_the_right_agent_and_parent()


async def test_a_dropped_tail_of_a_stream_is_caught(bench):
    def tamper(chunk):
        for choice in chunk.get("choices", ()):
            choice.pop("finish_reason", None)

    bench.fake.tamper = tamper
    played = await bench.one(lambda job: asking(job, stream=True))
    assert [call.complete for call in played.calls] == [False]
    assert played.error is not None
    adapted = played.adapt(WRITER)
    assert (adapted.calls, adapted.losses.counts) == (0, {"calls_incomplete": 1})


async def test_attaching_again_records_once(bench):
    again = attach(integrations=[OpenAIIntegration()])
    try:
        played = await bench.one(asking)
    finally:
        again.detach()
    assert len(check_identity(played)) == 1


async def test_a_retried_call_that_is_counted_twice_is_caught(bench):
    bench.fake.fail(1, status=503)
    played = await bench.one(asking)
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1
    (sent,) = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert sent.status == "ok"
    again = msgspec.structs.replace(sent, id="again", sequence=sent.sequence + 100)
    with pytest.raises(CaptureError):
        played.with_spans([*played.record.spans, again]).adapt(WRITER)


@pytest.mark.parametrize(
    "name", ["shop/clerk", "écrivain", "作家", "a b%20c", "x" * 300, "wri\nter"]
)
async def test_a_name_is_whatever_the_program_says(bench, name):
    played = await bench.one(lambda job: asking(job, name))
    assert played.output == ANSWER
    assert [call.agent for call in played.calls] == [name]
    assert played.adapt(name).calls == 1


async def test_two_agents_of_one_name_are_two_runs_of_one_agent(bench):
    bench.interleave(2)

    async def program(job):
        await asyncio.gather(*(asyncio.to_thread(asking, job) for _ in range(2)))

    played = await bench.one(program)
    check_identity(played)
    assert len({call.agent_run_id for call in played.calls}) == 2
    assert {call.agent for call in played.calls} == {WRITER}


async def test_a_cancelled_task_leaves_nothing_to_the_next(bench):
    asked, left = asyncio.Event(), asyncio.Event()

    async def hold(answer, position):
        if answer is bench.fake.log[0]:
            asked.set()
            await left.wait()

    bench.fake.before_send = hold

    async def program(job):
        async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
            given = {"model": job.model(WRITER), "messages": messages_of(job)}

            async def ask(name):
                with agent_scope(name):
                    return await client.chat.completions.create(**given)

            first = asyncio.ensure_future(ask(PLANNER))
            await asked.wait()
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            left.set()
            await ask(WRITER)

    played = await bench.one(program)
    assert played.error is None
    cancelled, sent = [span for span in played.spans if span.kind is SpanKind.LLM]
    assert (cancelled.agent, cancelled.error) == (PLANNER, "CancelledError")
    assert (sent.agent, sent.status) == (WRITER, "ok")
    assert played.adapt(WRITER).calls == 1
    with pytest.raises(CaptureError, match="incomplete"):
        played.adapt(PLANNER)


async def test_a_stream_that_is_left_half_way_is_incomplete_and_never_trained(bench):
    begun, left = asyncio.Event(), asyncio.Event()

    async def hold(answer, position):
        if position:
            begun.set()
            await left.wait()

    bench.fake.before_send = hold

    async def program(job):
        async with openai.AsyncOpenAI(base_url=job.base_url, api_key=job.api_key) as client:
            with agent_scope(WRITER):
                chunks = await client.chat.completions.create(
                    model=job.model(WRITER), messages=messages_of(job), stream=True
                )
                async for _ in chunks:
                    await begun.wait()
                    break
                await chunks.close()
        left.set()

    played = await bench.one(program)
    assert played.error is None
    assert [call.complete for call in played.calls] == [False]
    with pytest.raises(CaptureError, match="incomplete"):
        played.adapt(WRITER)


async def test_an_image_goes_to_the_model_as_it_did(bench):
    content = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
    ]

    def program(job):
        client = openai.OpenAI(base_url=job.base_url, api_key=job.api_key)
        with client, agent_scope(WRITER):
            messages = [{"role": "user", "content": content}]
            client.chat.completions.create(model=job.model(WRITER), messages=messages)

    played = await bench.one(program)
    check_tokens(played, bench.fake.log)
    assert bench.fake.log[0].body["messages"][0]["content"] == content
