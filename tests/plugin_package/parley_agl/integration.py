"""Parley's own hook, turned into spans and scopes."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from parley import Speaker, Step

from agl_core import semconv
from agl_core.tracing import Recorder, active, close_scope, guarded, open_scope
from agl_core.types import Scope, ScopeKind, SpanKind

FRAMEWORK: Final = "parley"
_KINDS: Final[Mapping[str, tuple[SpanKind, ScopeKind]]] = {
    "speech": (SpanKind.AGENT, "agent"),
    "model": (SpanKind.LLM, "call"),
    "tool": (SpanKind.TOOL, "tool"),
}


class ParleyIntegration:
    """Parley, attached to the process."""

    name = FRAMEWORK

    def attach(self) -> None:
        """Watch every step."""
        if watched not in Speaker.around:
            Speaker.around.append(watched)

    def detach(self) -> None:
        """Watch no more."""
        if watched in Speaker.around:
            Speaker.around.remove(watched)

    def identity(self) -> Scope | None:
        """None: the scope of a step is current where Parley sends its request."""
        return None


@dataclass(frozen=True, slots=True)
class _Open:
    recorder: Recorder
    scope: Scope


@contextmanager
def watched(step: Step) -> Generator[None, None, None]:
    """Record a step inside a rollout; outside of one, nothing."""
    opened, failure = _begin(step), None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        if opened is not None:
            _end(opened, step, failure)


@guarded(FRAMEWORK)
def _begin(step: Step) -> _Open | None:
    context = active()
    if context is None:
        return None
    span_kind, scope_kind = _KINDS[step.kind]
    agent = step.name if step.kind == "speech" else None
    attributes = {semconv.AGL_FRAMEWORK: FRAMEWORK}
    if step.kind == "tool":
        attributes[semconv.GEN_AI_TOOL_NAME] = step.name
        attributes[semconv.GEN_AI_TOOL_ARGUMENTS] = step.arguments or ""
    span_id = context.recorder.start(span_kind, step.name, agent=agent, attributes=attributes)
    return _Open(context.recorder, open_scope(scope_kind, span_id=span_id, agent=agent))


@guarded(FRAMEWORK)
def _end(opened: _Open, step: Step, failure: BaseException | None) -> None:
    close_scope(opened.scope)
    told = step.kind == "tool" and failure is None
    opened.recorder.end_with(
        opened.scope.span_id,
        failure,
        attributes={semconv.GEN_AI_TOOL_RESULT: step.result} if told else None,
    )
