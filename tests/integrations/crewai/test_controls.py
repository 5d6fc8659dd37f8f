"""Records that are wrong in one way each: somebody must notice."""

import msgspec
import pytest
from agl_crewai import AglEventListener, _events, _frames, _listener
from agl_testing.scenario import PLANNER, WRITER
from crewai import Crew

from agl_core.errors import CaptureError
from agl_core.types import SpanKind

from . import test_contract
from .programs import agent, task

SWAPPED = {PLANNER: WRITER, WRITER: PLANNER}


class Broken(test_contract.TestCrewAI):
    """One rule at a time is run by hand."""

    __test__ = False


def writing(job, **fields):
    writer = agent(job, WRITER, **fields)
    return Crew(agents=[writer], tasks=[task(job.question, writer)]).kickoff().raw


@pytest.fixture
def second():
    """One listener more than the contract attaches."""
    listener = AglEventListener()
    yield listener
    listener.close()


async def test_swapped_agents_are_caught(monkeypatch):
    role = _events._role
    monkeypatch.setattr(_events, "_role", lambda given: SWAPPED.get(role(given), role(given)))
    with pytest.raises(AssertionError):
        await Broken().test_one_span_per_call_with_the_right_agent_and_parent()


async def test_a_frame_that_stays_open_is_caught(monkeypatch):
    def end(frame, error, *, failed=None, attributes=None):
        frame.span.recorder.end_with(frame.span.span_id, error, attributes=attributes)

    monkeypatch.setattr(_frames, "_end", end)
    with pytest.raises(AssertionError):
        await Broken().test_the_skeleton_is_that_of_every_framework()


async def test_recording_twice_is_caught(monkeypatch, second):
    del second
    monkeypatch.setattr(_listener, "seen", lambda event_id: False)
    with pytest.raises(AssertionError):
        await Broken().test_the_skeleton_is_that_of_every_framework()


async def test_a_listener_that_is_attached_twice_records_once(second):
    del second
    await Broken().test_the_skeleton_is_that_of_every_framework()


async def test_a_dropped_tail_of_a_stream_is_caught(bench):
    def tamper(chunk):
        for choice in chunk.get("choices", ()):
            choice.pop("finish_reason", None)

    bench.fake.tamper = tamper
    played = await bench.one(lambda job: writing(job, stream=True))
    assert not any(call.complete for call in played.calls)  # CrewAI asks again
    assert played.error is not None
    assert played.adapt(WRITER).calls == 0


async def test_a_retried_call_that_is_counted_twice_is_caught(bench):
    bench.fake.fail(1, status=503)
    played = await bench.one(writing)
    assert played.error is None
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1
    spans = list(played.record.spans)
    (own,) = [span for span in spans if span.kind is SpanKind.LLM and span.call is None]
    spans.append(msgspec.structs.replace(own, id="again", sequence=own.sequence + 100))
    with pytest.raises(CaptureError):
        played.with_spans(spans).adapt(WRITER)
