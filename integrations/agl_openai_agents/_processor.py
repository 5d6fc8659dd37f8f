"""A tracing processor that records the SDK's spans as spans and scopes of agl-core."""

from __future__ import annotations

from typing import Any

from agents.tracing import Span, Trace, TracingProcessor

from agl_core.tracing import active, guarded
from agl_openai_agents._shapes import FRAMEWORK
from agl_openai_agents._spans import TABLES


class AglTracingProcessor(TracingProcessor):
    """Records the agents, calls, tools and handoffs of a program that uses the SDK.

    Each model request gets the name of its agent. Add the processor with
    ``agents.add_trace_processor``. It exports nothing, and does nothing outside a rollout, so
    production code may keep it. One instance serves any number of rollouts, threads and tasks; a
    span that reaches several instances is recorded once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False

    @guarded(FRAMEWORK)
    def on_span_start(self, span: Span[Any]) -> None:
        """Record a span's start; the SDK calls this in the span's task, before it is current."""
        context = active()
        if context is None or self._stopped:
            return
        table = TABLES.of(context)
        if span.span_id not in table:
            table.start(span)

    @guarded(FRAMEWORK)
    def on_span_end(self, span: Span[Any]) -> None:
        """Record a span's end, in any thread: the garbage collector ends an abandoned stream."""
        table = TABLES.holding(span.span_id)
        if table is not None:
            table.end(span)

    def on_trace_start(self, trace: Trace) -> None:
        """Do nothing: a trace only groups spans."""

    def on_trace_end(self, trace: Trace) -> None:
        """Do nothing: a trace only groups spans."""

    def shutdown(self) -> None:
        """Stop recording new spans; open ones still end."""
        self._stopped = True

    def force_flush(self) -> None:
        """Do nothing: the processor has no buffer."""
