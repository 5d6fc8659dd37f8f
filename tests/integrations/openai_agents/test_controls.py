"""The golden skeleton, and records that are wrong in one way each: somebody must notice."""

from pathlib import Path

import agents
import msgspec
import pytest
from agents import Runner
from agl_openai_agents import AglTracingProcessor, _spans
from agl_openai_agents._spans import TABLES
from agl_testing.scenario import EXPECTED, PLANNER, WRITER, outline, skeleton

from agl_core.errors import CaptureError
from agl_core.tracing import active
from agl_core.types import SpanKind

from . import test_contract
from .test_contract import OpenAIAgentsProgram, ResponsesProgram

GOLDEN = Path(__file__).parent / "golden" / "skeleton.txt"
SWAPPED = {PLANNER: WRITER, WRITER: PLANNER}


class Broken(test_contract.TestOpenAIAgents):
    """One rule at a time is run by hand."""

    __test__ = False

    def program(self):
        return OpenAIAgentsProgram()


@pytest.mark.parametrize("program", [OpenAIAgentsProgram, ResponsesProgram])
async def test_the_skeleton_is_the_golden_one(bench, program):
    played = await bench.one(program().arun)
    assert outline(played.spans) == GOLDEN.read_text(encoding="utf-8").splitlines()
    assert skeleton(played.spans) == EXPECTED


async def test_swapped_agents_are_caught(monkeypatch):
    start_of = _spans.start_of

    def swapped(data):
        if data.type == "agent":
            data.name = SWAPPED[data.name]
        return start_of(data)

    monkeypatch.setattr(_spans, "start_of", swapped)
    with pytest.raises(AssertionError):
        await Broken().test_one_span_per_call_with_the_right_agent_and_parent()


async def test_recording_twice_is_caught(monkeypatch):
    def start(processor, span):
        TABLES.of(active()).start(span)

    monkeypatch.setattr(AglTracingProcessor, "on_span_start", start)
    agents.add_trace_processor(second := AglTracingProcessor())
    try:
        with pytest.raises(AssertionError):
            await Broken().test_the_skeleton_is_that_of_every_framework()
    finally:
        second.shutdown()


async def test_a_dropped_tail_of_a_stream_is_caught(bench, agent):
    def tamper(chunk):
        for choice in chunk.get("choices", ()):
            choice.pop("finish_reason", None)

    bench.fake.tamper = tamper

    async def program(job):
        result = Runner.run_streamed(agent(job, WRITER), job.question)
        return [event async for event in result.stream_events()]

    played = await bench.one(program)
    assert [call.complete for call in played.calls] == [False]
    assert played.error is not None
    adapted = played.adapt(WRITER)
    assert (adapted.calls, adapted.losses.counts) == (0, {"calls_incomplete": 1})


async def test_a_retried_call_that_is_counted_twice_is_caught(bench, agent):
    bench.fake.fail(1, status=503)

    async def program(job):
        return (await Runner.run(agent(job, WRITER), job.question)).final_output

    played = await bench.one(program)
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1
    spans = list(played.record.spans)
    twice = next(span for span in spans if span.kind is SpanKind.LLM and span.call is None)
    spans.append(msgspec.structs.replace(twice, id="again", sequence=twice.sequence + 100))
    with pytest.raises(CaptureError):
        played.with_spans(spans).adapt(WRITER)
