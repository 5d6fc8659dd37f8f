"""Records that are wrong in one way each: somebody must notice."""

import msgspec
import pytest
from agl_langchain import _runs
from agl_langchain._integration import LangChainIntegration
from agl_testing.scenario import PLANNER, WRITER
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from agl_core.errors import CaptureError
from agl_core.types import SpanKind

from . import test_contract

ASKED = {"messages": [HumanMessage("What is the price of tea?")]}
SWAPPED = {PLANNER: WRITER, WRITER: PLANNER}


class Broken(test_contract.TestLangChain):
    """One rule at a time is run by hand."""

    __test__ = False


class BrokenTwice(Broken):
    """With two handlers in the process."""

    def integration(self):
        return Twice()


class Twice(LangChainIntegration):
    """Attaches a second handler with its own."""

    def attach(self):
        super().attach()
        self._second = LangChainIntegration()
        self._second.attach()

    def detach(self):
        self._second.detach()
        super().detach()


async def test_swapped_agents_are_caught(monkeypatch):
    introduced = _runs.introduced

    def swapped(*args, **kwargs):
        found = introduced(*args, **kwargs)
        return found and found._replace(agent=SWAPPED.get(found.agent, found.agent))

    monkeypatch.setattr(_runs, "introduced", swapped)
    with pytest.raises(AssertionError):
        await Broken().test_one_span_per_call_with_the_right_agent_and_parent()


async def test_recording_twice_is_caught(monkeypatch):
    monkeypatch.setattr(_runs.RunTable, "__contains__", lambda table, run_id: False)
    # The first span of a run is lost with what it should have been told at its end.
    with pytest.raises((AssertionError, KeyError)):
        await BrokenTwice().test_the_skeleton_is_that_of_every_framework()


async def test_attached_twice_it_records_once():
    await BrokenTwice().test_the_skeleton_is_that_of_every_framework()


async def test_a_dropped_tail_of_a_stream_is_caught(bench, chat):
    def tamper(chunk):
        for choice in chunk.get("choices", ()):
            choice.pop("finish_reason", None)

    bench.fake.tamper = tamper

    def program(job):
        model = chat(job, WRITER, streaming=True)
        create_agent(model, tools=[], name=WRITER).invoke(ASKED)

    played = await bench.one(program)
    assert [call.complete for call in played.calls] == [False]
    assert played.error is not None
    adapted = played.adapt(WRITER)
    assert (adapted.calls, adapted.losses.counts) == (0, {"calls_incomplete": 1})


async def test_a_retried_call_that_is_counted_twice_is_caught(bench, chat):
    bench.fake.fail(1, status=503)

    def program(job):
        create_agent(chat(job, WRITER, max_retries=1), tools=[], name=WRITER).invoke(ASKED)

    played = await bench.one(program)
    assert played.error is None
    assert len(played.adapt(WRITER).trajectories[WRITER]) == 1
    spans = list(played.record.spans)
    (once,) = [span for span in spans if span.kind is SpanKind.LLM and span.call is None]
    spans.append(msgspec.structs.replace(once, id="again", sequence=once.sequence + 100))
    with pytest.raises(CaptureError):
        played.with_spans(spans).adapt(WRITER)
