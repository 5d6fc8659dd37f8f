"""A span with its scope: current in its own steps alone, ended once, never in the way."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from agl_core import semconv
from agl_core.tracing import (
    UNNAMED,
    ScopeFrame,
    SpanStart,
    Tracer,
    agent_scope,
    current_scope,
    enter,
    handoff,
    operation,
    run_as,
)
from agl_core.types import SpanKind


class StopError(Exception):
    """An exception by which the framework continues in other code."""


TRACER = Tracer("toy", control_flow=lambda: (StopError,))
OTHERS = Tracer("other")


@pytest.fixture
def context(make_context):
    context = make_context()
    with enter(context):
        yield context


def by_name(context):
    return {span.name: span for span in context.recorder.drain()}


def by_id(context):
    return {span.id: span for span in context.recorder.snapshot()}


async def numbers(*, fail_at: int | None = None):
    for number in range(3):
        if number == fail_at:
            raise ValueError(f"no {number}")
        yield number


async def test_a_span_is_current_only_while_its_step_runs(context):
    span = TRACER.open(context.recorder, TRACER.agent("writer"))
    assert current_scope() is None

    async def step():
        await asyncio.to_thread(lambda: None)
        return current_scope()

    assert await span.run(step) is span
    assert current_scope() is None
    span.end()


async def test_a_stream_of_pieces_leaves_its_reader_where_it_was(context):
    span = TRACER.open(context.recorder, TRACER.agent("writer"))
    seen: list[int] = []
    with operation("reading") as reading:
        async for _ in span.stream(numbers(), seen.append):
            assert current_scope() is reading
    assert seen == [0, 1, 2]
    spans = by_name(context)
    assert spans["writer"].status == "ok"
    assert spans["reading"].parent_id is None


async def test_only_items_of_the_wanted_kind_are_shown(context):
    async def mixed():
        for item in (1, "two", 3):
            yield item

    seen: list[str] = []
    span = TRACER.open(context.recorder, TRACER.agent("writer"))
    assert [_ async for _ in span.stream(mixed(), seen.append, kind=str)] == [1, "two", 3]
    assert seen == ["two"]


@pytest.mark.parametrize("read", [1, 3])
async def test_who_waits_for_a_span_to_be_left_is_told_once(context, read):
    times_left: list[None] = []
    span = TRACER.open(context.recorder, TRACER.agent("writer"))
    span.on_end = lambda: times_left.append(None)
    stream = span.stream(numbers())
    for _ in range(read):
        await anext(stream)
        assert not times_left
    await stream.aclose()
    span.end()
    assert len(times_left) == 1


class Iterator:
    """A stream of a user's own class, which cannot be closed."""

    def __init__(self):
        self._left = [2, 1]

    def __aiter__(self):
        return self

    async def __anext__(self):
        return self._left.pop()


async def test_a_stream_that_cannot_be_closed_is_left_and_fails_as_it_does_alone(context):
    left = TRACER.open(context.recorder, TRACER.agent("left")).stream(Iterator())
    assert await anext(left) == 1
    await left.aclose()
    failed = TRACER.open(context.recorder, TRACER.agent("failed")).stream(Iterator())
    with pytest.raises(IndexError, match="pop from empty list"):
        [_ async for _ in failed]
    spans = by_name(context)
    assert (spans["left"].status, spans["failed"].status) == ("ok", "error")


async def test_a_stream_whose_close_fails_ends_its_span(context):
    async def stubborn():
        try:
            yield 1
        finally:
            raise OSError("still open")

    stream = TRACER.open(context.recorder, TRACER.agent("writer")).stream(stubborn())
    await anext(stream)
    with pytest.raises(OSError, match="still open"):
        await stream.aclose()
    assert by_name(context)["writer"].error != "not ended"


async def test_a_reader_who_leaves_a_stream_has_not_made_it_fail_and_an_exception_has(context):
    left = TRACER.open(context.recorder, TRACER.agent("left")).stream(numbers())
    assert await anext(left) == 0
    await left.aclose()
    failed = TRACER.open(context.recorder, TRACER.agent("failed")).stream(numbers(fail_at=1))
    with pytest.raises(ValueError, match="no 1"):
        [_ async for _ in failed]
    spans = by_name(context)
    assert (spans["left"].status, spans["left"].error) == ("ok", "")
    assert (spans["failed"].status, spans["failed"].error) == ("error", "ValueError: no 1")


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("boom"), "error"), (asyncio.CancelledError(), "error"), (StopError(), "ok")],
)
async def test_what_leaves_a_span_passes_unchanged_and_control_flow_is_no_failure(
    context, error, status
):
    async def step():
        raise error

    with pytest.raises(type(error)) as raised:
        await TRACER.open(context.recorder, TRACER.agent("writer")).run(step)
    assert raised.value is error
    assert by_name(context)["writer"].status == status


async def test_words_of_a_failure_count_as_one_and_the_exception_behind_them_more(context):
    told = TRACER.open(context.recorder, TRACER.tool("told", {}, call_id="c1"))
    told.end(failed="Error: no price")
    caught = TRACER.open(context.recorder, TRACER.tool("caught", {}, call_id="c2"))
    caught.caught = ValueError("no price")
    caught.end(failed="Error")
    caught.end()
    spans = by_name(context)
    assert (spans["told"].status, spans["told"].error) == ("error", "Error: no price")
    assert spans["caught"].error == "ValueError: no price"
    assert spans["caught"].attributes[semconv.EXCEPTION_TYPE] == "builtins.ValueError"


async def test_a_failure_with_an_empty_message_is_a_failure(context):
    TRACER.open(context.recorder, TRACER.tool("failed", {})).end(failed="")
    TRACER.open(context.recorder, TRACER.tool("worked", {})).end(failed=None)
    spans = by_name(context)
    assert (spans["failed"].status, spans["failed"].error) == ("error", "")
    assert (spans["worked"].status, spans["worked"].error) == ("ok", "")


async def test_calls_and_tools_are_those_of_the_agent_that_speaks_here(context):
    reply = TRACER.open(context.recorder, TRACER.agent("writer"))
    with reply.running():
        call = TRACER.open(context.recorder, TRACER.call("policy"))
        with call.running():
            assert TRACER.speaker() is None
        call.end()
        tool = TRACER.open(context.recorder, TRACER.tool("lookup", {"item": "lamp"}, call_id="c1"))
        with tool.running():
            assert TRACER.speaker() is None
            assert current_scope().agent is None
        tool.end(attributes={semconv.GEN_AI_TOOL_RESULT: "12"})
        with agent_scope("judge"):
            assert TRACER.speaker() is None
        assert TRACER.speaker() is reply
        assert OTHERS.speaker() is None
    assert TRACER.speaker() is None
    reply.end()
    spans = by_name(context)
    writer = spans["writer"]
    assert writer.kind is SpanKind.AGENT
    for name, kind in (("policy", SpanKind.LLM), ("lookup", SpanKind.TOOL)):
        span = spans[name]
        assert (span.kind, span.parent_id, span.agent, span.agent_run_id) == (
            kind,
            writer.id,
            "writer",
            writer.id,
        )
        assert span.attributes[semconv.AGL_FRAMEWORK] == "toy"
    assert spans["policy"].attributes[semconv.GEN_AI_REQUEST_MODEL] == "policy"
    assert spans["lookup"].attributes[semconv.GEN_AI_TOOL_CALL_ID] == "c1"
    assert spans["lookup"].attributes[semconv.GEN_AI_TOOL_RESULT] == "12"


async def test_a_reply_goes_on_with_the_run_of_the_same_agent_around_it(context):
    outer = TRACER.open(context.recorder, TRACER.agent("writer"))
    with outer.running():
        inner = TRACER.open(context.recorder, TRACER.agent("writer"))
        nameless = TRACER.open(context.recorder, TRACER.agent(None))
        other = TRACER.open(context.recorder, TRACER.agent("critic"))
    assert inner.agent_run_id == nameless.agent_run_id == outer.agent_run_id
    assert other.agent_run_id == other.span_id
    resumed = TRACER.open(context.recorder, TRACER.agent("writer", run_id="run_before"))
    assert resumed.agent_run_id == "run_before"


async def test_an_agent_without_a_name_is_nobody(context):
    start = TRACER.agent(None, speaker="@context")
    assert (start.kind, start.name, start.speaker) == (SpanKind.OPERATION, UNNAMED, None)
    with TRACER.open(context.recorder, start).running():
        assert current_scope().agent is None


async def test_who_speaks_inside_may_be_another_and_what_must_not_be_trained_stays_so(context):
    with agent_scope("judge", trainable=False):
        reply = TRACER.open(context.recorder, TRACER.agent("writer", speaker="@context"))
    with reply.running():
        assert (current_scope().agent, current_scope().trainable) == ("@context", False)
        assert TRACER.open(context.recorder, TRACER.call("policy")).trainable is False
        assert TRACER.call("").name == "model"


async def test_a_span_without_a_span_hangs_what_is_inside_under_what_is_around(context):
    reply = TRACER.open(context.recorder, TRACER.agent("writer"))
    with reply.running():
        turn = TRACER.open(context.recorder, SpanStart(None, scope="operation"))
        with turn.running():
            TRACER.open(context.recorder, TRACER.tool("lookup", "")).end()
        turn.end()
    spans = by_name(context)
    assert set(spans) == {"writer", "lookup"}
    assert spans["lookup"].parent_id == spans["writer"].id


async def test_two_hooks_of_one_framework_see_the_same_work_by_its_key(context):
    assert TRACER.innermost() is None
    span = TRACER.open(context.recorder, TRACER.agent("writer"))
    span.key = ("reply", 1)
    with span.running(), operation("of the user's"):
        assert TRACER.innermost() is span
        assert OTHERS.innermost() is None
        with OTHERS.open(context.recorder, SpanStart(SpanKind.OPERATION, "other")):
            assert TRACER.innermost() is span
    assert TRACER.innermost() is None


async def test_what_a_framework_says_for_itself_is_never_trained(context):
    reply = TRACER.open(context.recorder, TRACER.agent("writer"))

    async def step():
        scope = current_scope()
        return scope.agent, scope.trainable, scope.span_id

    with reply.running():
        call = TRACER.open(context.recorder, TRACER.call("policy"))
        with call.running():
            own = await run_as(context.recorder, "@summarizer", step)
            outside = await run_as(context.recorder, "@summarizer", step, parent=reply)
            assert current_scope() is call
    assert own == ("@summarizer", False, call.span_id)
    assert outside == ("@summarizer", False, reply.span_id)
    names = {span.name for span in context.recorder.drain()}
    assert names == {"writer", "policy"}


async def test_a_recorder_that_fails_is_reported_and_nothing_is_raised(context, monkeypatch):
    span = TRACER.open(context.recorder, TRACER.agent("writer"))

    def broken(*args, **kwargs):
        raise RuntimeError("full")

    monkeypatch.setattr(context.recorder, "update", broken)
    monkeypatch.setattr(context.recorder, "end", broken)
    span.set_attributes({"a": 1})
    span.end()
    monkeypatch.undo()
    errors = [span for span in context.recorder.drain() if span.name == semconv.AGL_CAPTURE_ERROR]
    assert len(errors) == 2
    assert {span.attributes[semconv.AGL_FRAMEWORK] for span in errors} == {"toy"}


def test_a_span_of_a_block_is_current_in_it_and_ends_with_it(context):
    error = ValueError("boom")

    def block():
        with TRACER.open(context.recorder, TRACER.agent("a")) as span:
            assert current_scope() is span
            raise error

    with pytest.raises(ValueError, match="boom") as raised:
        block()
    assert raised.value is error
    assert current_scope() is None
    assert by_name(context)["a"].error == "ValueError: boom"


def test_a_span_that_two_hooks_begin_and_end_is_current_until_its_end(context):
    outer = TRACER.open(context.recorder, TRACER.agent("writer")).activate()
    inner = TRACER.open(context.recorder, SpanStart(SpanKind.OPERATION, "step")).activate()
    assert current_scope() is inner
    with ThreadPoolExecutor() as pool:
        pool.submit(outer.end).result()
    assert current_scope() is inner
    inner.end()
    assert current_scope() is None
    assert {span.status for span in by_name(context).values()} == {"ok"}


def test_a_closed_scope_leaves_its_span_open(context):
    with TRACER.open(context.recorder, TRACER.agent("writer")) as writer:
        call = TRACER.open(context.recorder, TRACER.call("policy")).activate()
        call.close()
        call.close()
        assert current_scope() is writer
        assert by_id(context)[call.span_id].end_ns == 0
        call.end()
    assert by_name(context)["policy"].end_ns


@pytest.mark.parametrize("ended", ["close", "end"])
def test_a_scope_inside_a_span_that_was_never_current_outlives_it(context, ended):
    span = TRACER.open(context.recorder, TRACER.agent("writer"))
    context.locators["toy"] = lambda opened: span if opened is None and not span.closed else opened
    with agent_scope("user") as users:
        assert users.parent is span
        getattr(span, ended)()
        assert span.closed
        assert current_scope() is users
    assert current_scope() is None


def test_what_is_left_open_in_a_step_is_current_in_the_next(context):
    span = TRACER.open(context.recorder, TRACER.agent("writer"))
    with span.running():
        inner = TRACER.open(context.recorder, SpanStart(SpanKind.OPERATION, "step")).activate()
    assert current_scope() is None
    with span.running():
        assert current_scope() is inner


def test_the_scope_of_a_body_without_a_span_is_not_that_of_its_reader(context):
    del context
    with agent_scope("around") as around:
        frame, inner = ScopeFrame(), agent_scope("inner")
        with frame.running():
            assert current_scope() is around
            scope = inner.__enter__()
        assert current_scope() is around
        with agent_scope("reader") as reader:
            with frame.running():
                assert current_scope() is scope
                inner.__exit__(None, None, None)
                assert current_scope() is around
            assert current_scope() is reader


def test_a_given_parent_counts_and_not_the_current_scope(context):
    with TRACER.open(context.recorder, TRACER.agent("writer")) as writer:
        top = TRACER.open(context.recorder, SpanStart(SpanKind.OPERATION, "top"), parent=None)
        node = TRACER.open(
            context.recorder, SpanStart(SpanKind.OPERATION, "node", scope="agent", speaker="hidden")
        )
        below = TRACER.open(context.recorder, SpanStart(SpanKind.OPERATION, "below"), parent=node)
    assert (top.parent, top.agent) == (None, None)
    assert (node.agent, below.agent) == ("hidden", "hidden")
    spans = by_name(context)
    assert (spans["top"].parent_id, spans["top"].agent) == (None, None)
    assert (spans["below"].parent_id, spans["below"].agent) == (node.span_id, "writer")
    assert spans["node"].parent_id == writer.span_id


def test_an_agent_inside_itself_continues_its_run_unless_a_new_one_is_wanted(context):
    start = SpanStart(SpanKind.AGENT, "writer", agent="writer")
    with TRACER.open(context.recorder, start) as outer:
        assert TRACER.open(context.recorder, start).agent_run_id == outer.agent_run_id
        fresh = TRACER.open(context.recorder, replace(start, new_run=True))
    assert fresh.agent_run_id == fresh.span_id
    assert by_id(context)[fresh.span_id].agent_run_id == fresh.span_id


def test_a_call_by_an_agent_that_is_not_around_is_a_run_of_its_own(context):
    with TRACER.open(context.recorder, TRACER.agent("writer")) as writer:
        own = TRACER.open(context.recorder, SpanStart(SpanKind.LLM, "own", agent="writer"))
        other = TRACER.open(context.recorder, SpanStart(SpanKind.LLM, "other", agent="@owned"))
    spans = by_name(context)
    assert own.agent_run_id == spans["own"].agent_run_id == writer.agent_run_id
    assert other.agent_run_id == spans["other"].agent_run_id == other.span_id


def test_a_span_of_nobody_in_a_tool_scope(context):
    with TRACER.open(context.recorder, TRACER.agent("writer")):
        start = SpanStart(SpanKind.MESSAGE, "broadcast", scope="tool", agent="")
        with TRACER.open(context.recorder, start) as span:
            assert current_scope().agent is None
    assert by_id(context)[span.span_id].agent is None


def test_a_handoff_says_who_hands_over_to_which_agent(context):
    with TRACER.open(context.recorder, TRACER.agent("planner")):
        TRACER.open(context.recorder, handoff("planner", "writer", attributes={"a": 1})).end()
    span = by_name(context)["handoff"]
    assert (span.kind, span.agent) == (SpanKind.MESSAGE, "planner")
    assert span.attributes[semconv.AGL_HANDOFF_FROM] == "planner"
    assert span.attributes[semconv.AGL_HANDOFF_TO] == "writer"
    assert span.attributes["a"] == 1
