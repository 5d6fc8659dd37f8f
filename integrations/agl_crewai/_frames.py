"""The chain of frames, which are open spans, in the context in which CrewAI emits an event.

CrewAI copies its context variables to the threads and tasks that it starts, so these see the frames
that were open when they started.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from agl_core import semconv
from agl_core.tracing import (
    AttemptContext,
    Recorder,
    SpanScope,
    SpanStart,
    Tracer,
    active,
    current_scope,
    guarded,
)
from agl_core.types import Scope, SpanKind
from agl_crewai._events import Beginning, Closing
from agl_crewai._names import FRAMEWORK, GUARDRAIL, OWN, SUMMARIZER, TASK

TRACER: Final = Tracer(FRAMEWORK)

_METHOD: Final = "method_execution_started"
_TOOL: Final = "tool_usage_started"
_AGENTS: Final = frozenset({"agent_execution_started", "lite_agent_execution_started"})
_GUARDRAIL: Final = "llm_guardrail_started"
_MACHINERY: Final = _AGENTS | {"crew_kickoff_started", "task_started", _GUARDRAIL}
"""Types of frames in which CrewAI calls models itself; tools and flow methods are user code."""


@dataclass(eq=False, slots=True)
class Frame:
    """An open span, from the event that opened it to the one that closes it."""

    type: str
    """Type of the event that opened it."""
    key: str
    name: str
    span: SpanScope
    parent: Frame | None
    inner: set[Frame] = field(default_factory=set["Frame"])
    """Open frames directly inside, also of other tasks and threads."""


_FRAME: ContextVar[Frame | None] = ContextVar("agl_crewai_frame", default=None)
_REPORTED: ContextVar[Any] = ContextVar("agl_crewai_reported", default=None)
"""The failure reported by the span that ended last in this context."""
_LAST_EVENT: ContextVar[str | None] = ContextVar("agl_crewai_event", default=None)


def seen(event_id: str) -> bool:
    """Return whether this event was already observed, and mark it: two listeners get each event."""
    if _LAST_EVENT.get() == event_id:
        return True
    _LAST_EVENT.set(event_id)
    return False


def begin(context: AttemptContext, event_type: str, found: Beginning, *, summarizes: bool) -> None:
    """Open a frame; the innermost open frame is its parent.

    Args:
        context: The running attempt.
        event_type: Type of the event.
        found: The span to begin.
        summarizes: Whether it is a model call that asks for a summary of a history.
    """
    recorder, start = context.recorder, found.start
    around = _innermost(recorder)
    if start.agent is not None and _in_guardrail(around):
        _reserve(start)
    if found.message is not None:
        _hand_on(recorder, around, event_type, found)
    if start.kind is SpanKind.LLM:
        _set_caller(start, around, summarizes=summarizes)
    start.agent = start.agent or None
    span = TRACER.open(recorder, start).activate()
    frame = Frame(event_type, found.key, start.name, span, around)
    if around is not None:
        around.inner.add(frame)
    _FRAME.set(frame)


def end(context: AttemptContext, found: Closing) -> None:
    """Close the frame that has ended, and every frame inside it that is still open.

    For example, CrewAI emits no end event for an agent that a `HookAborted` ends.
    """
    inner = _innermost(context.recorder)
    frame = inner
    while frame is not None and (frame.type, frame.key) != (found.opened_by, found.key):
        frame = _open(frame.parent, context.recorder)
    if frame is None:
        return
    while inner is not None and inner is not frame:
        _close(inner, found)
        inner = _open(inner.parent, context.recorder)
    _close(frame, found, attributes=found.attributes)
    _FRAME.set(_open(frame.parent, context.recorder))


def note(ended: Closing) -> None:
    """Remember the failure that a tool's end event reported: CrewAI reports it again."""
    _REPORTED.set(ended.failure)


def refuse(context: AttemptContext, found: Beginning, failure: Any) -> None:
    """Record a tool call that reached no tool, unless its end event reported the same failure."""
    if failure is not _REPORTED.get():
        TRACER.open(context.recorder, found.start).end(failed=failure.message)


@dataclass(slots=True)
class Place:
    """The open frames when an entry point of CrewAI was called."""

    recorder: Recorder
    around: tuple[Frame, ...]
    """Frames that were open, the innermost first."""


def standing() -> Place | None:
    """Return the open frames for `leave`; None outside a rollout."""
    context = active()
    return None if context is None else Place(context.recorder, _chain(context.recorder))


@guarded(FRAMEWORK)
def leave(place: Place | None, error: BaseException | None) -> None:
    """Close every frame that was opened after `place` and has not ended.

    Args:
        place: Result of `standing` from when the entry point was called.
        error: The exception that leaves the entry point; None if it returns.
    """
    if place is None:
        return
    # Tasks that are cancelled with this one emit no event; threads do not get the exception.
    everywhere = error is not None and not isinstance(error, Exception)
    for frame in _chain(place.recorder):
        if frame in place.around:
            break
        if everywhere:
            _end_inside(frame, error)
        _end(frame, error)
    _FRAME.set(next((frame for frame in place.around if not frame.span.closed), None))


def _end_inside(frame: Frame, error: BaseException | None) -> None:
    for inner in tuple(frame.inner):
        _end_inside(inner, error)
        _end(inner, error)


def speaker() -> Scope | None:
    """Return the current scope for a model request; None outside CrewAI or outside a rollout.

    A flow method that calls a model itself becomes an agent with the method's name.
    """
    context = active()
    frame = None if context is None else _innermost(context.recorder)
    if frame is None:
        return None
    scope = current_scope()
    if frame.type == _METHOD and scope is frame.span and frame.span.agent is None:
        span, name = frame.span, frame.name
        span.agent, span.agent_run_id = name, span.span_id
        span.recorder.update(
            span.span_id, kind=SpanKind.AGENT, agent=name, agent_run_id=span.span_id
        )
    return scope


def _set_caller(start: SpanStart, around: Frame | None, *, summarizes: bool) -> None:
    """Set the agent, the agent run if it is known, and whether the call may be trained."""
    scope = speaker() if around is not None else current_scope()
    if summarizes:
        start.agent, start.trainable = SUMMARIZER, False
    elif start.agent:
        return
    elif (
        start.agent is None
        and around is not None
        and around.type in _MACHINERY
        and scope is around.span
    ):
        start.agent, start.trainable = OWN, False
    elif scope is not None:
        start.agent, start.agent_run_id = scope.agent, scope.agent_run_id


def _in_guardrail(around: Frame | None) -> bool:
    """Return whether this is inside an LLM guardrail, for which CrewAI makes its own agent."""
    while around is not None:
        if around.type == _GUARDRAIL:
            return True
        around = around.parent
    return False


def _reserve(start: SpanStart) -> None:
    """Give CrewAI's own guardrail agent a reserved name: the user did not name or configure it."""
    if start.agent == SUMMARIZER:
        return
    start.agent = GUARDRAIL
    if start.kind is SpanKind.AGENT:
        start.name = GUARDRAIL
        start.attributes = {TASK: (start.attributes or {}).get(TASK)}


def _hand_on(recorder: Recorder, around: Frame | None, event_type: str, found: Beginning) -> None:
    """Record a message: a task's context, or the request of one agent to another."""
    if found.message is None:
        return
    role, content = found.message
    message: dict[str, Any] = {"role": role, "content": content}
    if event_type in _AGENTS:
        asked_by = _asking(around)
        if asked_by is None:
            return
        message |= {"from": asked_by, "to": found.start.agent}
    recorder.point(
        semconv.AGL_MESSAGE,
        attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, semconv.AGL_MESSAGE: message},
    )


def _asking(around: Frame | None) -> str | None:
    """Return the agent that called this tool; None if the frame is not a tool."""
    if around is None or around.type != _TOOL:
        return None
    frame = around.parent
    while frame is not None and frame.type not in _AGENTS:
        frame = frame.parent
    return None if frame is None else frame.span.agent


def _innermost(recorder: Recorder) -> Frame | None:
    return _open(_FRAME.get(), recorder)


def _chain(recorder: Recorder) -> tuple[Frame, ...]:
    """Return the open frames of this attempt, the innermost first."""
    found: list[Frame] = []
    frame = _innermost(recorder)
    while frame is not None:
        found.append(frame)
        frame = _open(frame.parent, recorder)
    return tuple(found)


def _open(frame: Frame | None, recorder: Recorder) -> Frame | None:
    """Return the innermost open frame of this attempt: other contexts may have closed some."""
    while frame is not None and (frame.span.closed or frame.span.recorder is not recorder):
        frame = frame.parent
    return frame


def _close(frame: Frame, found: Closing, attributes: dict[str, Any] | None = None) -> None:
    _end(frame, found.error, failed=found.failed, attributes=attributes)


def _end(
    frame: Frame,
    error: BaseException | None,
    *,
    failed: str | None = None,
    attributes: dict[str, Any] | None = None,
) -> None:
    frame.span.end(error, failed=failed, attributes=attributes)
    if frame.parent is not None:
        frame.parent.inner.discard(frame)
