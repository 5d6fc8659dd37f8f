"""Frameworks with a context of their own take part in the current scope."""

from agl_core.tracing import (
    Recorder,
    active,
    agent_scope,
    current_scope,
    emit_message,
    trace,
)
from agl_core.tracing._scopes import opened_here
from agl_core.types import Scope, SpanKind


def test_a_locator_narrows_the_current_scope_but_not_what_was_opened_here():
    with trace("root") as recorder:
        span = recorder.start(SpanKind.OPERATION, "node")
        node = Scope(kind="agent", span_id=span, agent="writer", parent=opened_here())
        active().locators["mine"] = lambda opened: node if opened is node.parent else opened
        assert current_scope() is node
        assert opened_here() is node.parent
        emit_message("in the node")
        with agent_scope("judge") as judge:
            assert current_scope() is judge
            assert judge.parent is node
    message = next(each for each in recorder.snapshot() if each.kind is SpanKind.MESSAGE)
    assert (message.parent_id, message.agent) == (span, "writer")


def test_an_empty_parent_hangs_a_span_under_the_attempt_whatever_is_open():
    with trace("root") as recorder, agent_scope("writer"):
        recorder.start(SpanKind.OPERATION, "top", parent_id="")
    (top,) = [span for span in recorder.snapshot() if span.name == "top"]
    assert (top.parent_id, top.agent) == (None, None)


def test_a_span_can_turn_out_to_be_an_agents():
    recorder = Recorder("r", "a")
    span = recorder.start(SpanKind.OPERATION, "node")
    recorder.update(span, kind=SpanKind.AGENT, name="writer", agent="writer", agent_run_id="run")
    recorder.update(span, attributes={"a": 1})
    (found,) = recorder.drain()
    assert (found.kind, found.name, found.agent, found.agent_run_id) == (
        SpanKind.AGENT,
        "writer",
        "writer",
        "run",
    )
