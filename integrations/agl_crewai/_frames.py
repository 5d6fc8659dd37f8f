"""What of CrewAI goes on here, in the context of whoever emits: a chain of open frames.

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
    active,
    close_scope,
    current_scope,
    guarded,
    open_scope,
)
from agl_core.types import Scope, SpanKind
from agl_crewai._events import Closing, Opening
from agl_crewai._names import FRAMEWORK, GUARDRAIL, OWN, SUMMARIZER, TASK

_METHOD: Final = "method_execution_started"
_TOOL: Final = "tool_usage_started"
_AGENTS: Final = frozenset({"agent_execution_started", "lite_agent_execution_started"})
_GUARDRAIL: Final = "llm_guardrail_started"
_MACHINERY: Final = _AGENTS | {"crew_kickoff_started", "task_started", _GUARDRAIL}
"""Where CrewAI itself calls models. Tools and the methods of flows are the user's code."""


@dataclass(eq=False, slots=True)
class Frame:
    """One thing that goes on, from the event that opened it to the one that closes it."""

    type: str
    """Of the event that opened it."""
    key: str
    name: str
    scope: Scope
    recorder: Recorder
    parent: Frame | None
    inner: set[Frame] = field(default_factory=set["Frame"])
    """What is open directly inside, in other tasks and threads too."""


_FRAME: ContextVar[Frame | None] = ContextVar("agl_crewai_frame", default=None)
_LAST_EVENT: ContextVar[str | None] = ContextVar("agl_crewai_event", default=None)


def seen(event_id: str) -> bool:
    """Whether this event was observed here already: two listeners are told of each."""
    if _LAST_EVENT.get() == event_id:
        return True
    _LAST_EVENT.set(event_id)
    return False


def begin(context: AttemptContext, event_type: str, found: Opening, *, summarizes: bool) -> None:
    """Open the frame of what begins; its span hangs under whatever is open here.

    Args:
        context: The attempt that runs here.
        event_type: Type of the event.
        found: What begins.
        summarizes: It is a model call that asks for a summary of a history.
    """
    around, recorder = _innermost(context.recorder), context.recorder
    if found.agent is not None and _in_guardrail(around):
        _reserve(found)
    agent, run, trainable = found.agent or None, None, found.trainable
    if found.scope == "call":
        agent, run, trainable = _caller(around, found, summarizes=summarizes)
    if found.message is not None:
        _tell(recorder, around, event_type, found)
    scope = current_scope()
    span = recorder.start(
        found.kind,
        found.name,
        agent=agent,
        agent_run_id=run,
        attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, **found.attributes},
        scope=scope,
    )
    if found.scope == "call" and agent is not None and run is None:
        run = span if scope is None or agent != scope.agent else scope.agent_run_id
        recorder.update(span, agent_run_id=run)
    opened = open_scope(
        found.scope,
        span_id=span,
        agent=agent,
        agent_run_id=run,
        trainable=trainable,
        parent=scope,
    )
    frame = Frame(event_type, found.key, found.name, opened, recorder, around)
    if around is not None:
        around.inner.add(frame)
    _FRAME.set(frame)


def end(context: AttemptContext, found: Closing) -> None:
    """Close the frame that has ended, and every frame inside whose own end was never told.

    CrewAI does not tell the end of an agent that is left by a deliberate stop, for one.
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
    # Tasks that were cancelled with this one tell nothing of it, threads are not told.
    everywhere = error is not None and not isinstance(error, Exception)
    for frame in _chain(place.recorder):
        if frame in place.around:
            break
        if everywhere:
            _end_inside(frame, error)
        _end(frame, error)
    _FRAME.set(next((frame for frame in place.around if not frame.scope.closed), None))


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
    if frame.type == _METHOD and scope is frame.scope and frame.scope.agent is None:
        span = frame.scope.span_id
        frame.scope.agent, frame.scope.agent_run_id = frame.name, span
        frame.recorder.update(span, kind=SpanKind.AGENT, agent=frame.name, agent_run_id=span)
    return scope


def _caller(
    around: Frame | None, found: Opening, *, summarizes: bool
) -> tuple[str | None, str | None, bool]:
    """Who makes a model call: agent, agent run where it is known, whether it may be trained."""
    scope = speaker() if around is not None else current_scope()
    if summarizes:
        return SUMMARIZER, None, False
    if found.agent:
        return found.agent, None, True
    if (
        found.agent is None
        and around is not None
        and around.type in _MACHINERY
        and scope is around.scope
    ):
        return OWN, None, False
    if scope is None:
        return None, None, True
    return scope.agent, scope.agent_run_id, True


def _in_guardrail(around: Frame | None) -> bool:
    """Whether CrewAI checks an output here, by an agent that it makes for that."""
    while around is not None:
        if around.type == _GUARDRAIL:
            return True
        around = around.parent
    return False


def _reserve(found: Opening) -> None:
    """Nobody has named that agent or chosen its settings."""
    if found.agent == SUMMARIZER:
        return
    found.agent = GUARDRAIL
    if found.kind is SpanKind.AGENT:
        found.name = GUARDRAIL
        found.attributes = {TASK: found.attributes.get(TASK)}


def _tell(recorder: Recorder, around: Frame | None, event_type: str, found: Opening) -> None:
    """Record what is handed on: a task's context, or what one agent asks of another."""
    if found.message is None:
        return
    role, content = found.message
    message: dict[str, Any] = {"role": role, "content": content}
    if event_type in _AGENTS:
        asked_by = _asking(around)
        if asked_by is None:
            return
        message |= {"from": asked_by, "to": found.agent}
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
    return None if frame is None else frame.scope.agent


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
    while frame is not None and (frame.scope.closed or frame.recorder is not recorder):
        frame = frame.parent
    return frame


def _close(frame: Frame, found: Closing, attributes: dict[str, Any] | None = None) -> None:
    if not found.failed:
        _end(frame, found.error, attributes)
        return
    _shut(frame)
    span = frame.scope.span_id
    frame.recorder.end(span, status="error", error=found.failed, attributes=attributes)


def _end(
    frame: Frame, error: BaseException | None, attributes: dict[str, Any] | None = None
) -> None:
    _shut(frame)
    frame.recorder.end_with(frame.scope.span_id, error, attributes=attributes)


def _shut(frame: Frame) -> None:
    close_scope(frame.scope)
    if frame.parent is not None:
        frame.parent.inner.discard(frame)
