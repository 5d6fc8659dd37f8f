"""Pieces of a framework's work: current in their own steps alone, ended once, never in the way."""

from __future__ import annotations

import asyncio

import pytest

from agl_core import semconv
from agl_core.tracing import (
    UNNAMED,
    Opening,
    Pieces,
    agent_scope,
    current_scope,
    enter,
    operation,
    spoken_by,
)
from agl_core.types import SpanKind


class StopError(Exception):
    """How the framework goes on elsewhere."""


PIECES = Pieces("toy", control_flow=(StopError,))
OTHERS = Pieces("other")


@pytest.fixture
def context(make_context):
    context = make_context()
    with enter(context):
        yield context


def by_name(context):
    return {span.name: span for span in context.recorder.drain()}


async def numbers(*, fail_at: int | None = None):
    for number in range(3):
        if number == fail_at:
            raise ValueError(f"no {number}")
        yield number


async def test_a_piece_is_current_only_while_its_step_runs(context):
    piece = PIECES.open(context, PIECES.reply("writer"))
    assert current_scope() is None

    async def step():
        await asyncio.to_thread(lambda: None)
        return current_scope()

    assert await piece.run(step) is piece.scope
    assert current_scope() is None
    piece.end()


async def test_a_stream_of_pieces_leaves_its_reader_where_it_was(context):
    piece = PIECES.open(context, PIECES.reply("writer"))
    seen: list[int] = []
    with operation("reading") as reading:
        async for _ in piece.through(numbers(), seen.append):
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
    piece = PIECES.open(context, PIECES.reply("writer"))
    assert [_ async for _ in piece.through(mixed(), seen.append, kind=str)] == [1, "two", 3]
    assert seen == ["two"]


@pytest.mark.parametrize("read", [1, 3])
async def test_who_waits_for_a_piece_to_be_left_is_told_once(context, read):
    times_left: list[None] = []
    piece = PIECES.open(context, PIECES.reply("writer"))
    piece.left = lambda: times_left.append(None)
    stream = piece.through(numbers())
    for _ in range(read):
        await anext(stream)
        assert not times_left
    await stream.aclose()
    piece.end()
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
    left = PIECES.open(context, PIECES.reply("left")).through(Iterator())
    assert await anext(left) == 1
    await left.aclose()
    failed = PIECES.open(context, PIECES.reply("failed")).through(Iterator())
    with pytest.raises(IndexError, match="pop from empty list"):
        [_ async for _ in failed]
    spans = by_name(context)
    assert (spans["left"].status, spans["failed"].status) == ("ok", "error")


async def test_a_stream_whose_close_fails_ends_its_piece(context):
    async def stubborn():
        try:
            yield 1
        finally:
            raise OSError("still open")

    stream = PIECES.open(context, PIECES.reply("writer")).through(stubborn())
    await anext(stream)
    with pytest.raises(OSError, match="still open"):
        await stream.aclose()
    assert by_name(context)["writer"].error != "not ended"


async def test_a_reader_who_leaves_a_stream_has_not_made_it_fail_and_an_exception_has(context):
    left = PIECES.open(context, PIECES.reply("left")).through(numbers())
    assert await anext(left) == 0
    await left.aclose()
    failed = PIECES.open(context, PIECES.reply("failed")).through(numbers(fail_at=1))
    with pytest.raises(ValueError, match="no 1"):
        [_ async for _ in failed]
    spans = by_name(context)
    assert (spans["left"].status, spans["left"].error) == ("ok", "")
    assert (spans["failed"].status, spans["failed"].error) == ("error", "ValueError: no 1")


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("boom"), "error"), (asyncio.CancelledError(), "error"), (StopError(), "ok")],
)
async def test_what_leaves_a_piece_passes_unchanged_and_control_flow_is_no_failure(
    context, error, status
):
    async def step():
        raise error

    with pytest.raises(type(error)) as raised:
        await PIECES.open(context, PIECES.reply("writer")).run(step)
    assert raised.value is error
    assert by_name(context)["writer"].status == status


async def test_words_of_a_failure_count_as_one_and_the_exception_behind_them_more(context):
    told = PIECES.open(context, PIECES.tool("told", "c1", {}))
    told.end(failed="Error: no price")
    caught = PIECES.open(context, PIECES.tool("caught", "c2", {}))
    caught.caught = ValueError("no price")
    caught.end(failed="Error")
    caught.end()
    spans = by_name(context)
    assert (spans["told"].status, spans["told"].error) == ("error", "Error: no price")
    assert spans["caught"].error == "ValueError: no price"
    assert spans["caught"].attributes[semconv.EXCEPTION_TYPE] == "builtins.ValueError"


async def test_calls_and_tools_are_those_of_the_agent_that_speaks_here(context):
    reply = PIECES.open(context, PIECES.reply("writer"))
    with reply.running():
        call = PIECES.open(context, PIECES.call("policy"))
        with call.running():
            assert PIECES.speaker() is None
        call.end()
        tool = PIECES.open(context, PIECES.tool("lookup", "c1", {"item": "lamp"}))
        with tool.running():
            assert PIECES.speaker() is None
            assert current_scope().agent is None
        tool.end(attributes={semconv.GEN_AI_TOOL_RESULT: "12"})
        with agent_scope("judge"):
            assert PIECES.speaker() is None
        assert PIECES.speaker() is reply
        assert OTHERS.speaker() is None
    assert PIECES.speaker() is None
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
    outer = PIECES.open(context, PIECES.reply("writer"))
    with outer.running():
        inner = PIECES.open(context, PIECES.reply("writer"))
        nameless = PIECES.open(context, PIECES.reply(None))
        other = PIECES.open(context, PIECES.reply("critic"))
    assert inner.agent_run_id == nameless.agent_run_id == outer.agent_run_id
    assert other.agent_run_id == other.scope.span_id
    resumed = PIECES.open(context, PIECES.reply("writer", run_id="run_before"))
    assert resumed.scope.agent_run_id == "run_before"


async def test_an_agent_without_a_name_is_nobody(context):
    opening = PIECES.reply(None, inside="@context")
    assert (opening.kind, opening.name, opening.inside) == (SpanKind.OPERATION, UNNAMED, None)
    with PIECES.open(context, opening).running():
        assert current_scope().agent is None


async def test_who_speaks_inside_may_be_another_and_what_must_not_be_trained_stays_so(context):
    with agent_scope("judge", trainable=False):
        reply = PIECES.open(context, PIECES.reply("writer", inside="@context"))
    with reply.running():
        assert (current_scope().agent, current_scope().trainable) == ("@context", False)
        assert PIECES.call("policy").trainable is False
        assert PIECES.call("").name == "model"


async def test_a_piece_without_a_span_hangs_what_is_inside_under_what_is_around(context):
    reply = PIECES.open(context, PIECES.reply("writer"))
    with reply.running():
        turn = PIECES.open(context, Opening(kind=None, scope="operation"))
        with turn.running():
            PIECES.open(context, PIECES.tool("lookup", None, "")).end()
        turn.end()
    spans = by_name(context)
    assert set(spans) == {"writer", "lookup"}
    assert spans["lookup"].parent_id == spans["writer"].id


async def test_two_hooks_of_one_framework_see_the_same_work_by_its_key(context):
    piece = PIECES.open(context, PIECES.reply("writer", key=("reply", 1)))
    assert not PIECES.is_seen(("reply", 1))
    with piece.running():
        assert PIECES.is_seen(("reply", 1))
        assert not PIECES.is_seen(("reply", 2))
        assert not OTHERS.is_seen(("reply", 1))


async def test_what_a_framework_says_for_itself_is_never_trained(context):
    reply = PIECES.open(context, PIECES.reply("writer"))

    async def step():
        scope = current_scope()
        return scope.agent, scope.trainable, scope.span_id

    with reply.running():
        assert await spoken_by("@summarizer", step) == (
            "@summarizer",
            False,
            reply.scope.span_id,
        )
        assert await spoken_by("@summarizer", step, parent_span="s") == ("@summarizer", False, "s")
        assert current_scope() is reply.scope


async def test_a_recorder_that_fails_is_reported_and_nothing_is_raised(context, monkeypatch):
    piece = PIECES.open(context, PIECES.reply("writer"))

    def broken(*args, **kwargs):
        raise RuntimeError("full")

    monkeypatch.setattr(context.recorder, "update", broken)
    monkeypatch.setattr(context.recorder, "end_with", broken)
    piece.tell({"a": 1})
    piece.end()
    monkeypatch.undo()
    errors = [span for span in context.recorder.drain() if span.name == semconv.AGL_CAPTURE_ERROR]
    assert len(errors) == 2
    assert {span.attributes[semconv.AGL_FRAMEWORK] for span in errors} == {"toy"}
