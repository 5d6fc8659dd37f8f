"""What fails in telemetry stays there."""

import pytest

from agl_core.tracing import (
    agent_scope,
    current_scope,
    emit_exception,
    emit_message,
    emit_object,
    emit_tool_call,
    guarded,
    operation,
    trace,
)


def broken(*_, **__):
    raise RuntimeError("the sink is broken")


@guarded("mine")
def callback(value):
    return 10 / value


def test_a_failure_is_a_capture_error_and_none():
    with trace("root") as recorder:
        assert callback(2) == 5
        assert callback(0) is None
        (error,) = [span for span in recorder.snapshot() if span.status == "error"]
    assert "ZeroDivisionError" in error.error
    assert error.attributes["agl.framework"] == "mine"


def test_a_failure_outside_an_attempt_is_logged(caplog):
    assert callback(0) is None
    assert "callback failed" in caplog.text


@pytest.mark.parametrize(
    "emit",
    [
        lambda: emit_message("x"),
        lambda: emit_object(1),
        lambda: emit_tool_call("lookup"),
        lambda: emit_exception(ValueError("x")),
    ],
)
def test_a_broken_recorder_never_reaches_who_emits(emit, monkeypatch):
    with trace("root") as recorder:
        for name in ("start", "point", "capture_error"):
            monkeypatch.setattr(recorder, name, broken)
        emit()


@pytest.mark.parametrize("scoped", [agent_scope("writer"), operation("retrieve")])
def test_a_broken_recorder_never_reaches_who_opens_a_scope(scoped, monkeypatch):
    with trace("root") as recorder:
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "start", broken)
            with scoped as scope:
                # Calls in here are still this agent's, not those of the code around it.
                assert scope is current_scope()
        with monkeypatch.context() as patch:
            patch.setattr(recorder, "end", broken)
            with scoped as scope:
                assert scope is not None
