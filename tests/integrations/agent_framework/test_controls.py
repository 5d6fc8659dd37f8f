"""The golden skeleton, and records that are wrong in one way each: somebody must notice."""

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from agl_agent_framework import _middleware
from agl_agent_framework._spans import TRACER
from agl_testing.scenario import PLANNER, WRITER, outline

from agl_core.errors import CaptureError
from agl_core.types import SpanKind

from . import test_contract
from .programs import AgentFrameworkProgram, agent, clients, streamed

GOLDEN = Path(__file__).parent / "golden" / "skeleton.txt"
SWAPPED = {PLANNER: WRITER, WRITER: PLANNER}


class Broken(test_contract.TestAgentFramework):
    """One rule at a time is run by hand."""

    __test__ = False


@pytest.mark.parametrize("form", ["run", "arun", "stream", "astream"])
async def test_the_skeleton_is_the_golden_one(bench, form):
    played = await bench.one(getattr(AgentFrameworkProgram(), form))
    assert played.error is None
    assert outline(played.spans) == GOLDEN.read_text(encoding="utf-8").splitlines()


async def test_swapped_agents_are_caught(monkeypatch):
    open_span = TRACER.open

    def swapped(recorder, start, **more):
        return open_span(recorder, replace(start, agent=SWAPPED.get(start.agent)), **more)

    monkeypatch.setattr(TRACER, "open", swapped)
    with pytest.raises(AssertionError):
        await Broken().test_one_span_per_call_with_the_right_agent_and_parent()


class Blind(_middleware.AglMiddleware):
    """Does not see that another one records already."""

    async def process(self, context, call_next):
        context.metadata = {}
        await super().process(context, call_next)


class RecordsTwice(AgentFrameworkProgram):
    agent_fields: ClassVar = {"middleware": [Blind(), Blind()]}


class Doubled(Broken):
    def program(self):
        return RecordsTwice()


async def test_recording_twice_is_caught():
    with pytest.raises(AssertionError):
        await Doubled().test_the_skeleton_is_that_of_every_framework()


async def test_a_dropped_tail_of_a_stream_is_caught(bench):
    def tamper(chunk):
        for choice in chunk.get("choices", ()):
            choice.pop("finish_reason", None)

    bench.fake.tamper = tamper

    async def program(job):
        async with clients(job) as client:
            await streamed(agent(client, WRITER), job.question)

    played = await bench.one(program)
    assert [call.complete for call in played.calls] == [False]
    assert played.error is not None
    adapted = played.adapt(WRITER)
    assert (adapted.calls, adapted.losses.counts) == (0, {"calls_incomplete": 1})


async def test_a_retried_call_that_is_counted_twice_is_caught(bench):
    bench.fake.fail(1, status=503)

    async def program(job):
        async with clients(job) as client:
            await agent(client, WRITER).run(job.question)

    played = await bench.one(program)
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1
    spans = list(played.record.spans)
    twice = next(span for span in spans if span.kind is SpanKind.LLM and span.call is None)
    spans.append(msgspec.structs.replace(twice, id="again", sequence=twice.sequence + 100))
    with pytest.raises(CaptureError):
        played.with_spans(spans).adapt(WRITER)
