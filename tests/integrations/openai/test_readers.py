"""How far the reader of a stream came, whenever it left."""

from __future__ import annotations

import asyncio
import contextlib
import sys

import openai
import pytest
from agl_openai._integration import OpenAIIntegration
from agl_testing.bench import Bench
from agl_testing.scenario import WRITER

import agl_core as agl
from agl_core import semconv
from agl_core.errors import CaptureError


@pytest.fixture
async def bench():
    async with Bench.open(integrations=[OpenAIIntegration()]) as bench:
        yield bench


def asks(job, dialect):
    """A stream of the client, and whether one of its events ends the answer."""
    client = openai.OpenAI(base_url=job.base_url, api_key=job.api_key)
    if dialect == "chat":
        question = [{"role": "user", "content": job.question}]
        stream = client.chat.completions.create(model="m", messages=question, stream=True)
        return stream, lambda event: bool(event.choices and event.choices[0].finish_reason)
    stream = client.responses.create(model="m", input=job.question, stream=True)
    return stream, lambda event: event.type == "response.completed"


def reads(dialect, count=None):
    """A program that reads so many events, or up to the end of the answer; then it leaves."""

    def program(job):
        with agl.agent_scope(WRITER):
            stream, is_last = asks(job, dialect)
            for number, event in enumerate(stream, 1):
                if number == count or (count is None and is_last(event)):
                    break
            stream.close()

    return program


DIALECTS = pytest.mark.parametrize("dialect", ["chat", "responses"])


@DIALECTS
async def test_a_reader_that_leaves_before_the_end_had_no_whole_answer(bench, dialect):
    """B2: however fast the model is: all of the answer may have arrived."""
    played = await bench.one(reads(dialect, 2))
    assert [span.attributes[semconv.AGL_READ] > 0 for span in played.spans if span.call_id] == [
        True
    ]
    with pytest.raises(CaptureError, match=r"its reader left after|client closed"):
        played.adapt(WRITER)


@DIALECTS
async def test_a_reader_that_leaves_at_the_end_had_the_whole_answer(bench, dialect):
    """B2: after the finish reason, before ``[DONE]``."""
    played = await bench.one(reads(dialect))
    (call,) = played.calls
    assert call.complete
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1


@DIALECTS
async def test_a_reader_that_reads_on_had_the_whole_answer(bench, dialect):
    played = await bench.one(reads(dialect, 10**6))
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1


async def test_a_reader_that_never_closes_its_stream_is_judged_alike(bench):
    """B2: the stream is kept, and neither read nor closed."""
    kept = []

    def program(job):
        with agl.agent_scope(WRITER):
            stream, is_last = asks(job, "chat")
            kept.append(stream)
            for event in stream:
                if is_last(event):
                    break

    played = await bench.one(program)
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1
    kept.pop().close()


def asks_whole(job, hook):
    """A whole answer, which `hook` sees once all of it has arrived and before the program does."""

    async def arrived(response):
        await response.aread()
        await hook(response)

    async def ask():
        http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [arrived]})
        given = {"base_url": job.base_url, "api_key": job.api_key, "max_retries": 1}
        async with openai.AsyncOpenAI(http_client=http, **given) as client:
            question = [{"role": "user", "content": job.question}]
            with agl.agent_scope(WRITER):
                return await client.chat.completions.create(model="m", messages=question)

    return ask


async def test_a_whole_answer_that_nobody_waits_for_any_more_was_not_read(bench):
    """B2: its bytes had all arrived when the program gave it up."""

    async def program(job):
        there = asyncio.Event()

        async def hook(response):
            there.set()
            await asyncio.Event().wait()

        asking = asyncio.ensure_future(asks_whole(job, hook)())
        await there.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking

    played = await bench.one(program)
    (call,) = played.calls
    assert call.complete
    with pytest.raises(CaptureError, match=r"its reader left after 0 of \d+ bytes"):
        played.adapt(WRITER)


async def test_what_is_asked_again_after_an_answer_was_lost_is_read(bench, monkeypatch):
    """B2: only the last try of a call tells how far its answer was read."""
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)
    lost = []

    async def hook(response):
        if not lost:
            lost.append(response)
            library = sys.modules[type(response).__module__.partition(".")[0]]
            raise library.ReadTimeout("the answer is lost on its way")

    async def program(job):
        await asks_whole(job, hook)()

    played = await bench.one(program)
    adapted = played.adapt(WRITER)
    assert len(adapted.trajectories[WRITER]) == 1
    assert adapted.losses.counts == {"superseded_tries": 1}
