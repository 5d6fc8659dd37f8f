"""Spans that end with a result or a stream of the framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from agent_framework import MiddlewareTermination, ResponseStream
from agent_framework.exceptions import UserInputRequiredException

from agl_core.tracing import SpanScope, Tracer, guarded

FRAMEWORK: Final = "agent_framework"
TRACER: Final = Tracer(
    FRAMEWORK, control_flow=lambda: (MiddlewareTermination, UserInputRequiredException)
)
Attributes = Callable[[Any], Mapping[str, Any]]
"""Reads span attributes from a result of the framework."""


@guarded(FRAMEWORK)
def end_with_result(span: SpanScope, value: Any, attributes: Attributes | None = None) -> None:
    """End the span; if `value` is a stream, when the stream ends.

    Args:
        span: The span to end.
        value: The result, or the stream that gives it.
        attributes: Reads the span's attributes from the result.
    """
    if isinstance(value, ResponseStream):
        _end_with_stream(span, value, attributes)
        return
    read = attributes(value) if attributes is not None and value is not None else None
    span.end(attributes=read)


def _end_with_stream(span: SpanScope, stream: Any, attributes: Attributes | None) -> None:
    @guarded(FRAMEWORK)
    def finish(final: Any) -> None:
        span.end()
        if attributes is not None:
            span.set_attributes(attributes(final))

    stream.with_pull_context_manager(lambda: _Pull(span))
    stream.with_cleanup_hook(span.end)
    try:
        stream.with_result_hook(finish)
    except RuntimeError:  # inner middleware has read the whole stream
        span.end()


class _Pull:
    """Context manager around each step of a stream; an exception in a step ends the span."""

    __slots__ = ("_inside", "_span")

    def __init__(self, span: SpanScope) -> None:
        self._span = span
        self._inside = span.running()

    def __enter__(self) -> None:
        self._inside.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside.__exit__(None, None, None)
        if error is not None:
            self._span.end(None if isinstance(error, StopAsyncIteration) else error)
