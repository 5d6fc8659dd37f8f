"""The SDK's own tracing, turned into spans and scopes."""

from __future__ import annotations

from typing import Any

from agents.tracing import Span, Trace, TracingProcessor

from agl_core.tracing import active, guarded
from agl_openai_agents._shapes import FRAMEWORK
from agl_openai_agents._spans import TABLES


class AglTracingProcessor(TracingProcessor):
    """Records what a program of the OpenAI Agents SDK does, and names the agent of each request.

    Add it beside your own with ``agents.add_trace_processor``. It exports nothing, and outside a
    rollout it does nothing, so it may stay in production. One instance serves any number of
    rollouts, threads and tasks; a span that reaches several instances is recorded once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False

    @guarded(FRAMEWORK)
    def on_span_start(self, span: Span[Any]) -> None:
        """Called in the task that runs inside the span, before the span is current."""
        context = active()
        if context is None or self._stopped:
            return
        table = TABLES.of(context)
        if span.span_id not in table:
            table.start(span)

    @guarded(FRAMEWORK)
    def on_span_end(self, span: Span[Any]) -> None:
        """Called anywhere: an abandoned stream ends where it is collected."""
        table = TABLES.holding(span.span_id)
        if table is not None:
            table.end(span)

    def on_trace_start(self, trace: Trace) -> None:
        """Traces only group runs; their spans say the rest."""

    def on_trace_end(self, trace: Trace) -> None:
        """Nothing ends with a trace."""

    def shutdown(self) -> None:
        """Record nothing that begins from now on."""
        self._stopped = True

    def force_flush(self) -> None:
        """Nothing is buffered: an attempt's spans are taken when it ends."""
