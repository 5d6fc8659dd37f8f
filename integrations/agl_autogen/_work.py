"""One piece of work: a span and its scope, from the call that begins them to its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agl_core import semconv
from agl_core.tracing import (
    AttemptContext,
    Recorder,
    close_scope,
    current_scope,
    guarded,
    open_scope,
)
from agl_core.types import Scope, ScopeKind, SpanKind

FRAMEWORK: Final = "autogen"

_SPANS: Final[Mapping[ScopeKind, SpanKind]] = {
    "agent": SpanKind.AGENT,
    "call": SpanKind.LLM,
    "tool": SpanKind.TOOL,
    "operation": SpanKind.OPERATION,
}


class Work:
    """Begun in the context that does the work, ended from any."""

    __slots__ = ("recorder", "scope")

    def __init__(self, recorder: Recorder, scope: Scope) -> None:
        self.recorder = recorder
        self.scope = scope

    @classmethod
    def begin(
        cls,
        context: AttemptContext,
        kind: ScopeKind,
        name: str,
        attributes: Mapping[str, Any] | None = None,
    ) -> Work:
        """Open a span below the current scope, and its own scope; an agent's name is `name`."""
        agent = name if kind == "agent" else None
        around = current_scope()
        span_id = start_span(context.recorder, kind, name, attributes=attributes, scope=around)
        scope = open_scope(kind, span_id=span_id, agent=agent, parent=around)
        return cls(context.recorder, scope)

    def end(
        self, error: BaseException | None = None, attributes: Mapping[str, Any] | None = None
    ) -> None:
        """Close both; a reader who leaves a stream has not made it fail."""
        close_scope(self.scope)
        self.recorder.end_with(self.scope.span_id, error, attributes=attributes)


def start_span(
    recorder: Recorder,
    kind: ScopeKind,
    name: str,
    *,
    parent_id: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    scope: Scope | None = None,
) -> str:
    return recorder.start(
        _SPANS[kind],
        name,
        parent_id=parent_id,
        agent=name if kind == "agent" else None,
        attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, **(attributes or {})},
        scope=scope,
    )


class Watcher:
    """What a wrapped function is watched by; each method is telemetry and never raises."""

    @guarded(FRAMEWORK)
    def saw(self, item: Any) -> None:
        """The function returned or yielded `item`."""
        self._saw(item)

    @guarded(FRAMEWORK)
    def end(self, error: BaseException | None) -> None:
        """The function ended."""
        self._end(error)

    def _saw(self, item: Any) -> None:
        raise NotImplementedError

    def _end(self, error: BaseException | None) -> None:
        raise NotImplementedError
