"""How far the reader of a stream came, whenever it left."""

from __future__ import annotations

import openai
import pytest
from agl_openai._integration import OpenAIIntegration

import agl_core as agl
from agl_core import semconv
from agl_core.errors import CaptureError
from agl_core.testing.bench import Bench
from agl_core.testing.scenario import WRITER


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
