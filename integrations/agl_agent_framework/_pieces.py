"""One piece of the framework's work: its span, and its scope wherever the framework does it.

A streamed piece is done in many small steps, each driven by whoever reads the stream. Its scope is
current in those steps and nowhere between them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from agent_framework import MiddlewareTermination, ResponseStream
from agent_framework.exceptions import UserInputRequiredException

from agl_core import semconv
from agl_core.tracing import Recorder, close_scope, current_scope, guarded, open_scope
from agl_core.tracing.context import ScopeFrame
from agl_core.tracing.emit import describe, exception_attributes
from agl_core.types import Scope, ScopeKind, SpanKind

FRAMEWORK: Final = "agent_framework"
Attributes = Callable[[Any], Mapping[str, Any]]
"""What a result of the framework's says, as attributes of a span."""
_CONTROL_FLOW: Final = (GeneratorExit, MiddlewareTermination, UserInputRequiredException)
"""What leaves a piece that has not failed: its reader left, or the framework goes on elsewhere."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """The agent whose run goes on here."""

    agent: str | None
    agent_run_id: str | None
    trainable: bool
    scope: Scope
    """That of the run; what is opened inside it through agl-core speaks for itself."""


_SPEAKER: ContextVar[Speaker | None] = ContextVar("agl_agent_framework_speaker", default=None)


def speaker() -> Speaker | None:
    """The agent that makes a call here, None where somebody else does or nobody is known."""
    found = _SPEAKER.get()
    return found if found is not None and found.scope is current_scope() else None


class Piece:
    """An open span with its scope."""

    __slots__ = ("_ended", "_frame", "_recorder", "scope", "speaker")

    def __init__(self, recorder: Recorder, scope: Scope, frame: ScopeFrame) -> None:
        """Made by `open_piece`."""
        self._recorder = recorder
        self._frame = frame
        self._ended = False
        self.scope = scope
        self.speaker: Speaker | None = None
        """Who speaks inside, where that is not for the scope to say."""

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Be current inside."""
        before = _SPEAKER.get()
        _SPEAKER.set(self.speaker)
        try:
            with self._frame.running():
                yield
        finally:
            # Not Token.reset: a stream may be closed in another context than it is read in.
            _SPEAKER.set(before)

    async def run(self, step: Callable[[], Awaitable[None]]) -> None:
        """Await `step` inside; an exception ends the piece and passes unchanged."""
        try:
            with self.running():
                await step()
        except BaseException as error:
            self.end(error)
            raise

    @guarded(FRAMEWORK)
    def result(self, value: Any, attributes: Attributes | None = None) -> None:
        """End now, or with the stream that `value` is; what it gave is told by `attributes`."""
        if not isinstance(value, ResponseStream):
            self.end(None, value, attributes)
            return
        stream: Any = value  # pyright: ignore[reportUnknownVariableType]
        stream.with_pull_context_manager(lambda: _Pull(self))
        stream.with_cleanup_hook(lambda: self.end(None))

        def told(final: Any) -> None:
            self.end(None)
            if attributes is not None:
                self._tell(final, attributes)

        try:
            stream.with_result_hook(told)
        except RuntimeError:  # middleware inside has read it all
            self.end(None)

    @guarded(FRAMEWORK)
    def end(
        self,
        error: BaseException | None,
        value: Any = None,
        attributes: Attributes | None = None,
    ) -> None:
        """End the span; the first end counts."""
        if self._ended:
            return
        self._ended = True
        close_scope(self.scope)
        told = attributes(value) if attributes is not None and value is not None else None
        if error is None or isinstance(error, _CONTROL_FLOW):
            self._recorder.end(self.scope.span_id, attributes=told)
        else:
            self._recorder.end(
                self.scope.span_id,
                status="error",
                error=describe(error),
                attributes=exception_attributes(error),
            )

    @guarded(FRAMEWORK)
    def _tell(self, value: Any, attributes: Attributes) -> None:
        self._recorder.update(self.scope.span_id, attributes=attributes(value))


class _Pull:
    """Around one step of a stream; whatever leaves it ends the piece."""

    __slots__ = ("_inside", "_piece")

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._inside: AbstractContextManager[None] = piece.running()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What a piece begins with."""

    kind: SpanKind
    scope: ScopeKind
    name: str
    agent: str | None = None
    agent_run_id: str | None = None
    trainable: bool = True
    inside: str | None = None
    """Who speaks inside, where that is not the agent whose span it is."""
    attributes: Mapping[str, Any] | None = None


def open_piece(recorder: Recorder, opening: Opening) -> Piece:
    """Begin a span under the current scope. Its own scope is current only where `Piece` says."""
    outside = ScopeFrame()
    with outside.running():
        span_id = recorder.start(
            opening.kind,
            opening.name,
            agent=opening.agent,
            agent_run_id=opening.agent_run_id,
            attributes={semconv.AGL_FRAMEWORK: FRAMEWORK, **(opening.attributes or {})},
        )
        own = opening.scope != "tool" and opening.inside is None
        scope = open_scope(
            opening.scope,
            span_id=span_id,
            agent=opening.agent if own else opening.inside,
            agent_run_id=opening.agent_run_id if own else None,
            trainable=opening.trainable,
        )
        return Piece(recorder, scope, ScopeFrame())
