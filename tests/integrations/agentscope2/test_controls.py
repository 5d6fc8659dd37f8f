"""The golden skeleton, and records that are wrong in one way each: somebody must notice."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from agl_agentscope._spans import TRACER
from agl_agentscope._v2.middleware import AglMiddleware
from agl_testing.scenario import PLANNER, WRITER

from agl_core.errors import CaptureError
from agl_core.types import SpanKind

from . import programs, test_contract
from .programs import AgentScopeProgram, agent, models, reply, streamed

GOLDEN = Path(__file__).parent / "golden" / "skeleton.txt"
SWAPPED = {PLANNER: WRITER, WRITER: PLANNER}


class Broken(test_contract.TestAgentScope):
    """One rule at a time is run by hand."""

    __test__ = False


@pytest.mark.parametrize("form", ["run", "arun", "stream", "astream"])
async def test_the_skeleton_is_the_golden_one(bench, tree, form):
    played = await bench.one(getattr(AgentScopeProgram(), form))
    assert played.error is None
    assert [*tree(played.spans)] == GOLDEN.read_text(encoding="utf-8").splitlines()


async def test_swapped_agents_are_caught(monkeypatch):
    open_span = TRACER.open

    def swapped(recorder, start, **more):
        return open_span(recorder, replace(start, agent=SWAPPED.get(start.agent)), **more)

    monkeypatch.setattr(TRACER, "open", swapped)
    with pytest.raises(AssertionError):
        await Broken().test_one_span_per_call_with_the_right_agent_and_parent()


async def test_recording_twice_is_caught(monkeypatch):
    monkeypatch.setattr(TRACER, "innermost", lambda: None)
    make = programs.agent

    def twice(*args, **fields):
        return make(*args, middlewares=[AglMiddleware(), AglMiddleware()], **fields)

    monkeypatch.setattr(programs, "agent", twice)
    with pytest.raises(AssertionError):
        await Broken().test_the_skeleton_is_that_of_every_framework()


async def test_middleware_that_is_given_twice_records_once(monkeypatch):
    make = programs.agent

    def twice(*args, **fields):
        return make(*args, middlewares=[AglMiddleware(), AglMiddleware()], **fields)

    monkeypatch.setattr(programs, "agent", twice)
    await Broken().test_the_skeleton_is_that_of_every_framework()


async def test_a_dropped_tail_of_a_stream_is_caught(bench):
    def tamper(chunk):
        for choice in chunk.get("choices", ()):
            choice.pop("finish_reason", None)

    bench.fake.tamper = tamper

    async def program(job):
        async with models(job, stream=True) as model:
            await streamed(agent(model, WRITER), job.question)

    played = await bench.one(program)
    assert [call.complete for call in played.calls] == [False]
    assert played.error is not None
    adapted = played.adapt(WRITER)
    assert (adapted.calls, adapted.losses.counts) == (0, {"calls_incomplete": 1})


async def test_a_retried_call_that_is_counted_twice_is_caught(bench, caplog):
    bench.fake.fail(1, status=503)

    async def program(job):
        async with models(job, max_retries=1) as model:
            await reply(agent(model, WRITER), job.question)

    with caplog.at_level("CRITICAL"):
        played = await bench.one(program)
    assert played.error is None
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1
    assert [
        span.status for span in played.spans if span.kind is SpanKind.LLM and not span.call
    ] == [
        "error",
        "ok",
    ]
    spans = list(played.record.spans)
    twice = [span for span in spans if span.kind is SpanKind.LLM and span.call is None][-1]
    spans.append(msgspec.structs.replace(twice, id="again", sequence=twice.sequence + 100))
    with pytest.raises(CaptureError):
        played.with_spans(spans).adapt(WRITER)
