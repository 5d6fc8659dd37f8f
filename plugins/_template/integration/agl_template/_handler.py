"""The framework's native events, turned into spans and scopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agl_testing.toy_framework import EventKind

from agl_core import semconv
from agl_core.tracing import Recorder, active, close_scope, guarded, open_scope
from agl_core.types import Scope, ScopeKind, SpanKind

FRAMEWORK: Final = "template"

_SPANS: Final[dict[EventKind, SpanKind]] = {
    "agent": SpanKind.AGENT,
    "model": SpanKind.LLM,
    "tool": SpanKind.TOOL,
}
_SCOPES: Final[dict[EventKind, ScopeKind]] = {"agent": "agent", "model": "call", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class _Open:
    """A run that has begun; whoever ends it may be outside the attempt's context."""

    recorder: Recorder
    scope: Scope


class AglTemplateListener:
    """Records what a program of the framework does, and tells requests who speaks.

    Outside a rollout it does nothing. This framework calls its listeners in the task that sends
    the request, so a scope opened here is current there. Where that does not hold, resolve the
    framework's own context in the integration's `identity` instead.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    @guarded(FRAMEWORK)
    def started(
        self,
        kind: EventKind,
        name: str,
        *,
        run_id: str,
        parent_run_id: str | None,
        arguments: str,
    ) -> None:
        """Open the span and the scope of a run."""
        del parent_run_id
        context = active()
        if context is None or run_id in self._open:
            return
        agent = name if kind == "agent" else None
        attributes = {semconv.AGL_FRAMEWORK: FRAMEWORK}
        if kind == "tool":
            attributes[semconv.GEN_AI_TOOL_NAME] = name
            attributes[semconv.GEN_AI_TOOL_ARGUMENTS] = arguments
        span_id = context.recorder.start(_SPANS[kind], name, agent=agent, attributes=attributes)
        scope = open_scope(_SCOPES[kind], span_id=span_id, agent=agent)
        self._open[run_id] = _Open(context.recorder, scope)

    @guarded(FRAMEWORK)
    def ended(
        self,
        *,
        run_id: str,
        output: str | None,
        error: BaseException | None,
        usage: Mapping[str, int],
    ) -> None:
        """Close them again."""
        run = self._open.pop(run_id, None)
        if run is None:
            return
        close_scope(run.scope)
        attributes: dict[str, Any] = {}
        if run.scope.kind == "tool" and error is None:
            attributes[semconv.GEN_AI_TOOL_RESULT] = output
        if usage:
            attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] = usage["prompt_tokens"]
            attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = usage["completion_tokens"]
        run.recorder.end_with(run.scope.span_id, error, attributes=attributes)
