"""What the checks of several plugins look for in the same way."""

from __future__ import annotations

import asyncio

import pytest
from agl_checks import (
    CLOSED_LOOP,
    failed_tools,
    failures_saying,
    is_from,
    records_from,
)

from agl_core import semconv
from agl_core.interfaces import AttemptRecord
from agl_core.types import Attempt, Failure, FailureKind, Rollout, Span, SpanKind, Task


def record(*frameworks, failure=None, behind=""):
    spans = [
        Span(
            id=f"s{index}",
            rollout_id="r",
            attempt_id="a",
            kind=SpanKind.AGENT,
            name="writer",
            attributes={semconv.AGL_FRAMEWORK: name} if name else {},
        )
        for index, name in enumerate(frameworks)
    ]
    attempt = Attempt(
        id="a",
        rollout_id="r",
        worker="w",
        fence=1,
        failure=failure and Failure(kind=FailureKind.AGENT, message=failure, traceback=behind),
    )
    rollout = Rollout(id="r", task=Task(id="t"), run_id="run")
    return AttemptRecord(rollout=rollout, attempt=attempt, spans=spans)


def look(*records):
    return [
        *failures_saying(
            CLOSED_LOOP, records, check="toy.loop", cause="its loop is closed", fix="Open one."
        )
    ]


def test_an_attempt_is_of_every_framework_that_recorded_in_it():
    both, other, none = record("toy", "other"), record(None, "other"), record(None)
    assert records_from([both, other, none], "toy") == [both]
    assert records_from([both, other, none], "other") == [both, other]
    assert [is_from(span, "toy") for span in both.spans] == [True, False]


def test_failures_with_the_words_are_one_error_with_its_fix():
    (found,) = look(
        record(failure="RuntimeError: Event loop is closed"),
        record(failure="ValueError: no price"),
        record(),
        record(failure="APIConnectionError: ...", behind="RuntimeError: Event loop is closed"),
    )
    assert (found.check, found.severity, found.fix) == ("toy.loop", "error", "Open one.")
    assert found.measured == "2 of 4 attempts failed because its loop is closed."
    assert found.figures == {"attempts": 2}


def test_nothing_is_said_where_none_failed_so():
    assert look() == look(record(), record(failure="ValueError: no price")) == []


def test_asyncio_words_a_closed_loop_so():
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError, match=CLOSED_LOOP):
        loop.call_soon(print)


def used(framework, name, error=""):
    return Span(
        id=f"{framework}-{name}",
        rollout_id="r",
        attempt_id="a",
        kind=SpanKind.TOOL,
        name=name,
        status="error" if error else "ok",
        error=error,
        attributes={semconv.AGL_FRAMEWORK: framework},
    )


def test_tools_of_the_framework_that_failed_are_a_warning():
    spans = [used("toy", "lookup"), used("toy", "pay", "KeyError: 1"), used("other", "pay", "no")]
    found = failed_tools(spans, "toy", check="toy.tools", fix="Mend them.")
    assert (found.check, found.severity, found.fix) == ("toy.tools", "warning", "Mend them.")
    assert found.figures == {"failed": 1, "used": 2, "tools": ["pay"]}
    assert "KeyError: 1" in found.measured
    well = failed_tools(spans[:1], "toy", check="toy.tools", fix="Mend them.")
    assert (well.severity, well.figures["used"]) == ("ok", 1)
