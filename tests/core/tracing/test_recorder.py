from __future__ import annotations

import asyncio
import dataclasses
import enum
import math
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core import semconv
from agl_core.tracing import Recorder, bounded, enter
from agl_core.types import Reward, Span, SpanKind
from tests.core.tracing.scopes import open_scope


@pytest.fixture
def recorder():
    return Recorder("rollout", "attempt")


def test_spans_keep_the_order_in_which_they_began(recorder):
    outer = recorder.start(SpanKind.AGENT, "outer")
    inner = recorder.start(SpanKind.LLM, "inner", parent_id=outer)
    recorder.end(inner)
    recorder.end(outer)
    spans = recorder.drain()
    assert [span.name for span in spans] == ["outer", "inner"]
    assert [span.sequence for span in spans] == [0, 1]
    assert spans[0].id < spans[1].id
    assert all(span.end_ns >= span.start_ns > 0 for span in spans)


def test_the_clock_going_back_gives_no_negative_duration(recorder, monkeypatch):
    span = recorder.start(SpanKind.TOOL, "t")
    monkeypatch.setattr("agl_core.tracing._recorder.wall_ns", lambda: 1)
    recorder.end(span)
    (ended,) = recorder.drain()
    assert ended.end_ns == ended.start_ns


def test_ending_again_replaces_the_first_end(recorder):
    span = recorder.start(SpanKind.LLM, "chat")
    recorder.end(span, status="error", error="HTTP 500")
    recorder.end(span)
    (ended,) = recorder.drain()
    assert (ended.status, ended.error) == ("ok", "")


def test_a_span_ends_with_what_left_it_unless_nothing_failed(recorder):
    class InterruptError(Exception):
        pass

    left_by = {
        "none": None,
        "reader": GeneratorExit(),
        "control": InterruptError("elsewhere"),
        "failure": ValueError("no price"),
        "cancelled": asyncio.CancelledError(),
    }
    for name, error in left_by.items():
        span = recorder.start(SpanKind.TOOL, name)
        recorder.end_with(
            span, error, control_flow=(InterruptError,), attributes={semconv.AGL_OBJECT: "kept"}
        )
    spans = {span.name: span for span in recorder.drain()}
    assert {name: (span.status, span.error) for name, span in spans.items()} == {
        "none": ("ok", ""),
        "reader": ("ok", ""),
        "control": ("ok", ""),
        "failure": ("error", "ValueError: no price"),
        "cancelled": ("error", "CancelledError"),
    }
    assert all(span.attributes[semconv.AGL_OBJECT] == "kept" for span in spans.values())
    failed = [name for name, span in spans.items() if semconv.EXCEPTION_TYPE in span.attributes]
    assert failed == ["failure", "cancelled"]
    assert "no price" in spans["failure"].attributes[semconv.EXCEPTION_STACKTRACE]


def test_open_spans_end_as_errors_when_drained(recorder):
    recorder.start(SpanKind.TOOL, "t")
    (span,) = recorder.drain()
    assert (span.status, span.error) == ("error", "not ended")
    assert span.end_ns


def test_a_span_in_an_agent_span_names_its_agent_and_in_a_tool_span_nobody(recorder):
    agent = recorder.start(SpanKind.AGENT, "writer", agent="writer")
    tool = recorder.start(SpanKind.TOOL, "search", parent_id=agent)
    recorder.start(SpanKind.LLM, "judge", parent_id=tool)
    spans = {span.name: span for span in recorder.drain()}
    assert spans["writer"].agent_run_id == agent
    assert (spans["search"].agent, spans["search"].agent_run_id) == ("writer", agent)
    assert (spans["judge"].agent, spans["judge"].agent_run_id) == (None, None)


def test_an_empty_agent_is_nobody_for_all_that_hangs_below(recorder):
    agent = recorder.start(SpanKind.AGENT, "writer", agent="writer")
    guard = recorder.start(SpanKind.OPERATION, "guard", parent_id=agent, agent="")
    judge = recorder.start(SpanKind.LLM, "judge", parent_id=guard)
    recorder.start(SpanKind.AGENT, "inner", parent_id=judge, agent="inner")
    recorder.update(guard, agent="writer")
    spans = {span.name: span for span in recorder.drain()}
    assert (spans["judge"].agent, spans["judge"].agent_run_id) == (None, None)
    assert spans["inner"].agent == "inner"
    assert spans["guard"].agent == "writer"


def test_parent_and_agent_default_to_the_current_scope(make_context):
    context = make_context()
    with enter(context):
        open_scope("agent", agent="writer", span_id="a", agent_run_id="run")
        context.recorder.start(SpanKind.OPERATION, "step")
    (span,) = context.recorder.drain()
    assert (span.parent_id, span.agent, span.agent_run_id) == ("a", "writer", "run")


def test_a_capture_error_is_a_message_span_with_status_error(recorder):
    recorder.capture_error("two answers", call_id="call_1", framework="toy")
    (span,) = recorder.drain()
    assert (span.kind, span.name) == (SpanKind.MESSAGE, semconv.AGL_CAPTURE_ERROR)
    assert (span.status, span.error, span.call_id) == ("error", "two answers", "call_1")
    assert span.attributes == {semconv.AGL_FRAMEWORK: "toy"}


def test_too_many_spans_are_dropped_and_counted_but_never_what_a_result_needs():
    recorder = Recorder("r", "a", max_spans=2)
    for number in range(5):
        recorder.start(SpanKind.TOOL, str(number))
    recorder.reward(Reward(value=1.0))
    recorder.capture_error("x")
    recorder.start(SpanKind.LLM, "chat")
    names = [span.name for span in recorder.drain()]
    assert names == ["0", "1", "main", semconv.AGL_CAPTURE_ERROR, "chat"]
    assert recorder.dropped == 3


def test_one_huge_value_is_cut_marked_and_counted_and_the_others_stay_whole():
    recorder = Recorder("r", "a", max_value_chars=4_000)
    for number in range(20):
        recorder.point("note", attributes={"text": str(number) * 1_000})
    recorder.point("huge", attributes={"text": "x" * 6_000_000, "tree": ["y" * 5_000]})
    *notes, huge = recorder.drain()
    assert all(len(span.attributes["text"]) <= 2_000 for span in notes)
    assert huge.attributes["text"].endswith("... [5996000 more characters]")
    assert huge.attributes["tree"].startswith('["yyy')
    assert recorder.truncated == 2


@pytest.mark.parametrize("length", [16_383, 16_384, 16_385, 1_000_000])
def test_a_reason_is_cut_marked_and_counted_beyond_its_limit(length):
    recorder = Recorder("r", "a")
    recorder.reward(Reward(value=1.0, why="x" * length))
    recorder.reward(Reward(value=0.5, why="short"))
    long, short = (span.reward for span in recorder.drain())
    more = length - 16_384
    marked = f"... [{more} more characters]" if more > 0 else ""
    assert long == Reward(value=1.0, why="x" * min(length, 16_384) + marked)
    assert short == Reward(value=0.5, why="short")
    assert recorder.truncated == (more > 0)


class Shouted(str):
    __slots__ = ()

    def __str__(self):
        return "HEY"


@pytest.mark.parametrize(
    ("why", "kept"),
    [
        ("half \ud83d", "half \\ud83d"),
        ("\U0001f600 é", "\U0001f600 é"),
        ("  two\nlines\n", "two\nlines"),
        (Shouted("plain"), "plain"),
        (3, "3"),
    ],
)
def test_a_reason_is_plain_text_that_encodes(why, kept):
    recorder = Recorder("r", "a")
    recorder.reward(Reward(value=1.0, why=why))
    (span,) = recorder.drain()
    assert span.reward.why == kept
    assert type(span.reward.why) is str


def test_what_comes_after_the_end_is_refused_counted_and_told():
    told: list[Span] = []
    recorder = Recorder("r", "a", on_late=told.append)
    open_span = recorder.start(SpanKind.TOOL, "t")
    recorder.drain()
    recorder.end(open_span)
    recorder.reward(Reward(value=1.0))
    assert recorder.drain() == []
    assert recorder.late == 1
    assert [(span.kind, span.reward) for span in told] == [(SpanKind.REWARD, Reward(value=1.0))]


def test_threads_lose_no_span_and_share_no_sequence(recorder):
    def work():
        for _ in range(200):
            recorder.end(recorder.start(SpanKind.OPERATION, "o"))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = recorder.drain()
    assert len({span.id for span in spans}) == 1600
    assert [span.sequence for span in spans] == list(range(1600))


def test_a_value_is_kept_as_it_was_when_recorded(recorder):
    messages = [{"role": "user", "content": "a"}]
    span = recorder.start(SpanKind.TOOL, "t", attributes={"messages": messages})
    messages[0]["content"] = "edited"
    messages.append({})
    recorder.update(span, attributes={"more": 1}, call_id="call")
    (kept,) = recorder.drain()
    assert kept.attributes == {"messages": [{"role": "user", "content": "a"}], "more": 1}
    assert kept.call_id == "call"


class Broken:
    def __repr__(self):
        raise RuntimeError


class Colour(str, enum.Enum):  # noqa: UP042  as older programs have them
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int


def cyclic():
    values: list = []
    values.append(values)
    return values


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (2**70, 2**70),
        (math.inf, "inf"),
        ("\ud800", "\\ud800"),
        (["\ud800", {"\udc00": ("a\ud800",)}], ["\\ud800", {"\\udc00": ["a\\ud800"]}]),
        (Colour.RED, "red"),
        (Point(1), {"x": 1}),
        ({1: {2}}, {"1": [2]}),
        (Broken(), "<Broken without a repr>"),
        ([Broken()], ["<Broken without a repr>"]),
        (object, "<class 'object'>"),
        (cyclic(), "[[...]]"),
    ],
)
def test_any_value_becomes_a_json_value(value, kept):
    assert bounded(value, 1_000) == (kept, False)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_kept_value_survives_json(value):
    kept, _ = bounded(value, 100)
    assert msgspec.json.decode(msgspec.json.encode(kept)) == kept
