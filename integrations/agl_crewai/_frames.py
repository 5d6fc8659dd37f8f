"""What is open of CrewAI in the context where an event is emitted: a chain of frames.

CrewAI hands its context variables to the threads and tasks that it starts, so a frame that is open
where an agent begins is open in everything the agent does.
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
"""Where CrewAI itself calls models. Tools and the methods of flows are the user's code."""


@dataclass(eq=False, slots=True)
class Frame:
    """One open span, from the event that opened it to the one that closes it."""

    type: str
    """Of the event that opened it."""
    key: str
    name: str
    span: SpanScope
    parent: Frame | None
    inner: set[Frame] = field(default_factory=set["Frame"])
    """What is open directly inside, in other tasks and threads too."""


_FRAME: ContextVar[Frame | None] = ContextVar("agl_crewai_frame", default=None)
_REPORTED: ContextVar[Any] = ContextVar("agl_crewai_reported", default=None)
"""The failure that what ended last here has reported."""
_LAST_EVENT: ContextVar[str | None] = ContextVar("agl_crewai_event", default=None)


def seen(event_id: str) -> bool:
    """Whether this event was observed already: two listeners get each."""
    if _LAST_EVENT.get() == event_id:
        return True
    _LAST_EVENT.set(event_id)
    return False


def begin(context: AttemptContext, event_type: str, found: Beginning, *, summarizes: bool) -> None:
    """Open the frame of what begins; its span hangs under whatever is open here.

    Args:
        context: The attempt that runs here.
        event_type: Type of the event.
        found: What begins.
        summarizes: It is a model call that asks for a summary of a history.
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
    """Close the frame that has ended, and every frame inside that had no end event.

    CrewAI sends no end event for an agent that a deliberate stop leaves, for example.
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
    """Remember the failure that the end of a tool has reported: CrewAI reports it again."""
    _REPORTED.set(ended.failure)


def refuse(context: AttemptContext, found: Beginning, failure: Any) -> None:
    """Record a tool call that reached no tool, unless its end has reported the same failure."""
    if failure is not _REPORTED.get():
        TRACER.open(context.recorder, found.start).end(failed=failure.message)


@dataclass(slots=True)
class Place:
    """Where a part of CrewAI was entered."""

    recorder: Recorder
    around: tuple[Frame, ...]
    """Frames that were open then, the innermost first."""


def standing() -> Place | None:
    """Where this code stands, for `leave`; None outside a rollout."""
    context = active()
    return None if context is None else Place(context.recorder, _chain(context.recorder))


@guarded(FRAMEWORK)
def leave(place: Place | None, error: BaseException | None) -> None:
    """Close every frame that was opened after `place` and has not ended.

    Args:
        place: What `standing` said on entering.
        error: What leaves; None where nothing is raised.
    """
    if place is None:
        return
    # Tasks that were cancelled with this one send no event, threads get none.
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
    """The scope of whatever is sent here; None outside CrewAI and outside a rollout.

    The method of a flow that calls a model itself becomes an agent of its name.
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
    """Set who makes a model call: agent, agent run where it is known, whether it may be trained."""
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
    """Whether CrewAI checks an output here, by an agent that it makes for that."""
    while around is not None:
        if around.type == _GUARDRAIL:
            return True
        around = around.parent
    return False


def _reserve(start: SpanStart) -> None:
    """The user has not named that agent or chosen its settings."""
    if start.agent == SUMMARIZER:
        return
    start.agent = GUARDRAIL
    if start.kind is SpanKind.AGENT:
        start.name = GUARDRAIL
        start.attributes = {TASK: (start.attributes or {}).get(TASK)}


def _hand_on(recorder: Recorder, around: Frame | None, event_type: str, found: Beginning) -> None:
    """Record what is handed on: a task's context, or what one agent asks of another."""
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
    """The agent whose tool this is, if it is one."""
    if around is None or around.type != _TOOL:
        return None
    frame = around.parent
    while frame is not None and frame.type not in _AGENTS:
        frame = frame.parent
    return None if frame is None else frame.span.agent


def _innermost(recorder: Recorder) -> Frame | None:
    return _open(_FRAME.get(), recorder)


def _chain(recorder: Recorder) -> tuple[Frame, ...]:
    """The open frames of this attempt, the innermost first."""
    found: list[Frame] = []
    frame = _innermost(recorder)
    while frame is not None:
        found.append(frame)
        frame = _open(frame.parent, recorder)
    return tuple(found)


def _open(frame: Frame | None, recorder: Recorder) -> Frame | None:
    """The innermost frame of this attempt that has not been closed elsewhere."""
    while frame is not None and (frame.span.closed or frame.span.recorder is not recorder):
        frame = frame.parent
    return frame


def _close(frame: Frame, found: Closing, attributes: dict[str, Any] | None = None) -> None:
    _end(frame, found.error, failed=found.failed, attributes=attributes)


def _end(
    frame: Frame,
    error: BaseException | None,
    *,
    failed: str = "",
    attributes: dict[str, Any] | None = None,
) -> None:
    frame.span.end(error, failed=failed, attributes=attributes)
    if frame.parent is not None:
        frame.parent.inner.discard(frame)
