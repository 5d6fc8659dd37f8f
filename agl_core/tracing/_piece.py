"""A piece of a framework's work: its span, and its scope wherever the framework does it.

A streamed piece is done in many small steps, each driven by whoever reads the stream. Its scope is
current in those steps and nowhere between them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agl_core.tracing.context import ScopeFrame, close_scope
from agl_core.tracing.guard import report
from agl_core.tracing.recorder import Recorder
from agl_core.types import Scope, ScopeKind, SpanKind

if TYPE_CHECKING:
    from contextvars import ContextVar

    from agl_core.tracing.pieces import Pieces

_DONE: Final = object()
_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class Opening:
    """What a piece begins with."""

    kind: SpanKind | None
    """None for a scope that has no span of its own."""
    scope: ScopeKind
    name: str = ""
    agent: str | None = None
    agent_run_id: str | None = None
    trainable: bool = True
    inside: str | None = None
    """Who speaks inside, where that is not the agent whose span it is."""
    key: tuple[Any, ...] = ()
    """Equal to that of the piece around where two hooks see the same work."""
    attributes: Mapping[str, Any] | None = None


class Piece:
    """An open scope, with its span where it has one. Telemetry: its methods never raise."""

    __slots__ = (
        "_ended",
        "_frame",
        "_pieces",
        "_recorder",
        "agent_run_id",
        "caught",
        "left",
        "opening",
        "scope",
    )

    def __init__(self, pieces: Pieces, recorder: Recorder, opening: Opening, scope: Scope) -> None:
        """Made by `Pieces.open`."""
        self._pieces = pieces
        self._recorder = recorder
        self._frame = ScopeFrame(scope)
        self._ended = False
        self.caught: BaseException | None = None
        """What went wrong inside, where the framework turned the exception into words."""
        self.left: Callable[[], object] | None = None
        """Called once, when the piece ends; telemetry as well, so it never raises."""
        self.opening = opening
        self.scope = scope
        self.agent_run_id = opening.agent_run_id or (scope.span_id if opening.agent else None)

    def running(self) -> _Inside:
        """Be current inside the ``with`` block."""
        return _Inside(self._pieces.current, self, self._frame)

    async def run(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Await `step` inside; an exception ends the piece and passes unchanged."""
        try:
            with self.running():
                return await step()
        except BaseException as error:
            self.end(error)
            raise

    async def through(
        self,
        items: AsyncIterable[Any],
        see: Callable[[Any], None] | None = None,
        *,
        kind: type[Any] = object,
    ) -> AsyncGenerator[Any, None]:
        """Yield `items`, each made inside; their end ends the piece.

        Args:
            items: The framework's, or those of a user's own class: not all of them can be closed.
            see: Is shown each item before it is passed on.
            kind: Class of the items that `see` is shown.
        """
        inside, steps = self.running(), aiter(items)
        try:
            while True:
                with inside:
                    item = await anext(steps, _DONE)
                if item is _DONE:
                    break
                if see is not None and isinstance(item, kind):
                    see(item)
                yield item
        except BaseException as error:
            try:
                if (close := getattr(steps, "aclose", None)) is not None:
                    with inside:
                        await close()
            finally:
                self.end(error)
            raise
        self.end()

    def tell(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the span."""
        try:
            self._recorder.update(self.scope.span_id, attributes=attributes)
        except Exception as error:  # noqa: BLE001  telemetry never raises into user code
            report(f"attributes were not recorded: {error!r}", framework=self._pieces.framework)

    def end(
        self,
        error: BaseException | None = None,
        *,
        failed: str = "",
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """End the scope and the span; the first end counts.

        Args:
            error: What left the piece.
            failed: What went wrong, where the framework turned the exception into words.
            attributes: Of the span.
        """
        if self._ended:
            return
        self._ended = True
        close_scope(self.scope)
        if self.left is not None:
            self.left()
        if self.opening.kind is None:
            return
        try:
            self._end_span(error or self.caught, failed, attributes)
        except Exception as problem:  # noqa: BLE001  telemetry never raises into user code
            report(f"a span was not ended: {problem!r}", framework=self._pieces.framework)

    def _end_span(
        self, error: BaseException | None, failed: str, attributes: Mapping[str, Any] | None
    ) -> None:
        span_id = self.scope.span_id
        if failed and error is None:
            self._recorder.end(span_id, status="error", error=failed, attributes=attributes)
            return
        control_flow = self._pieces.control_flow
        self._recorder.end_with(span_id, error, control_flow=control_flow, attributes=attributes)


class _Inside:
    """A class and no generator: it goes around every step of every stream."""

    __slots__ = ("_around", "_current", "_driver", "_frame", "_piece")

    def __init__(self, current: ContextVar[Piece | None], piece: Piece, frame: ScopeFrame) -> None:
        self._current = current
        self._piece = piece
        self._frame = frame
        self._around: Piece | None = None
        self._driver: Scope | None = None

    def __enter__(self) -> None:
        self._around = self._current.get()
        self._current.set(self._piece)
        self._driver = self._frame.enter()

    def __exit__(self, *exception: object) -> None:
        self._frame.leave(self._driver)
        # Not Token.reset: a stream may be closed in another context than it is read in.
        self._current.set(self._around)
