"""A listener that converts the framework's events to spans and scopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agl_testing.toy_framework import EventKind

from agl_core import semconv
from agl_core.tracing import SpanScope, SpanStart, Tracer, active, guarded

FRAMEWORK: Final = "template"
TRACER: Final = Tracer(FRAMEWORK)


class AglTemplateListener:
    """A listener that records a program of the framework, and names the agent of each request.

    Outside a rollout it does nothing. This framework calls its listeners in the task that sends the
    request, so a scope opened in the listener is current there. In a framework where this is not
    so, resolve the framework's own context in the integration's `identity` instead.
    """

    def __init__(self) -> None:
        self._open: dict[str, SpanScope] = {}
        """Open spans by run id; a run may end outside the attempt's context."""

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
        start = _start(kind, name, arguments)
        self._open[run_id] = TRACER.open(context.recorder, start).activate()

    @guarded(FRAMEWORK)
    def ended(
        self,
        *,
        run_id: str,
        output: str | None,
        error: BaseException | None,
        usage: Mapping[str, int],
    ) -> None:
        """Close the span and the scope of a run."""
        span = self._open.pop(run_id, None)
        if span is None:
            return
        attributes: dict[str, Any] = {}
        if span.kind == "tool" and error is None:
            attributes[semconv.GEN_AI_TOOL_RESULT] = output
        if usage:
            attributes[semconv.GEN_AI_USAGE_INPUT_TOKENS] = usage["prompt_tokens"]
            attributes[semconv.GEN_AI_USAGE_OUTPUT_TOKENS] = usage["completion_tokens"]
        span.end(error, attributes=attributes)


def _start(kind: EventKind, name: str, arguments: str) -> SpanStart:
    """Return the span that an event of the framework starts."""
    if kind == "agent":
        return TRACER.agent(name)
    if kind == "tool":
        return TRACER.tool(name, arguments)
    return TRACER.call(name)
