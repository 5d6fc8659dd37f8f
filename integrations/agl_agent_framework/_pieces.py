"""Pieces of the framework's work, which end with its results or with its streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final

from agent_framework import MiddlewareTermination, ResponseStream
from agent_framework.exceptions import UserInputRequiredException

from agl_core.tracing import Piece, Pieces, guarded

FRAMEWORK: Final = "agent_framework"
PIECES: Final = Pieces(FRAMEWORK, control_flow=(MiddlewareTermination, UserInputRequiredException))
Attributes = Callable[[Any], Mapping[str, Any]]
"""What a result of the framework's says, as attributes of a span."""


@guarded(FRAMEWORK)
def end_with_result(piece: Piece, value: Any, attributes: Attributes | None = None) -> None:
    """End now, or with the stream that `value` is; what it gave is told by `attributes`."""
    if isinstance(value, ResponseStream):
        _end_with_stream(piece, value, attributes)
        return
    told = attributes(value) if attributes is not None and value is not None else None
    piece.end(attributes=told)


def _end_with_stream(piece: Piece, stream: Any, attributes: Attributes | None) -> None:
    @guarded(FRAMEWORK)
    def told(final: Any) -> None:
        piece.end()
        if attributes is not None:
            piece.tell(attributes(final))

    stream.with_pull_context_manager(lambda: _Pull(piece))
    stream.with_cleanup_hook(piece.end)
    try:
        stream.with_result_hook(told)
    except RuntimeError:  # middleware inside has read it all
        piece.end()


class _Pull:
    """Around one step of a stream; whatever leaves it ends the piece."""

    __slots__ = ("_inside", "_piece")

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._inside = piece.running()

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
            self._piece.end(None if isinstance(error, StopAsyncIteration) else error)
