"""One piece of the framework's work: its span, and its scope wherever the framework does it.

A streamed piece is done in many small steps, each driven by whoever reads the stream. Its scope is
current in those steps and nowhere between them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from agl_core import semconv
from agl_core.tracing import Recorder, close_scope, current_scope, guarded, open_scope
from agl_core.tracing.context import AttemptContext, ScopeFrame
from agl_core.tracing.emit import describe, exception_attributes
from agl_core.types import Scope, ScopeKind, SpanKind
from agl_core.types.ids import new_id

FRAMEWORK: Final = "agentscope"
CONTEXT: Final = "@context"
"""Makes the calls in an agent's reply that are not its own model calls; never trained."""
SUMMARIZER: Final = "@summarizer"
"""Asks the model for summaries of an agent's context; never trained."""
_DONE: Final = object()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """An open scope, with its span where it has one."""

    __slots__ = ("_ended", "_frame", "_recorder", "agent_run_id", "caught", "opening", "scope")

    def __init__(
        self, recorder: Recorder, opening: Opening, scope: Scope, frame: ScopeFrame
    ) -> None:
        """Made by `open_piece`."""
        self._recorder = recorder
        self._frame = frame
        self._ended = False
        self.caught: BaseException | None = None
        """What went wrong inside, where the framework turned the exception into words."""
        self.opening = opening
        self.scope = scope
        self.agent_run_id = opening.agent_run_id or (scope.span_id if opening.agent else None)

    @contextmanager
    def running(self) -> Generator[None, None, None]:
        """Be current inside."""
        before = _PIECE.get()
        _PIECE.set(self)
        try:
            with self._frame.running():
                yield
        finally:
            # Not Token.reset: a stream may be closed in another context than it is read in.
            _PIECE.set(before)

    async def run(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Await `step` inside; an exception ends the piece and passes unchanged."""
        try:
            with self.running():
                return await step()
        except BaseException as error:
            self.end(error)
            raise

    async def through(
        self, items: AsyncGenerator[Any, None], see: Callable[[Any], None] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yield `items`, each made inside and shown to `see`; their end ends the piece."""
        try:
            while True:
                with self.running():
                    item = await anext(items, _DONE)
                if item is _DONE:
                    break
                if see is not None:
                    see(item)
                yield item
        except BaseException as error:
            with self.running():
                await items.aclose()
            self.end(error)
            raise
        self.end()

    @guarded(FRAMEWORK)
    def tell(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the span."""
        assert self.opening.kind is not None
        self._recorder.update(self.scope.span_id, attributes=attributes)

    @guarded(FRAMEWORK)
    def end(self, error: BaseException | None = None, *, failed: str = "") -> None:
        """End the span; the first end counts.

        Args:
            error: What left the piece; a reader who leaves a stream has not made it fail.
            failed: What went wrong, where the framework turned the exception into words.
        """
        if self._ended:
            return
        self._ended = True
        close_scope(self.scope)
        if self.opening.kind is None:
            return
        error = error or self.caught
        if error is None or isinstance(error, GeneratorExit):
            self._recorder.end(self.scope.span_id, status="error" if failed else "ok", error=failed)
        else:
            self._recorder.end(
                self.scope.span_id,
                status="error",
                error=describe(error),
                attributes=exception_attributes(error),
            )


_PIECE: ContextVar[Piece | None] = ContextVar("agl_agentscope_piece", default=None)


def is_seen(key: tuple[Any, ...]) -> bool:
    """Whether the piece around is this very work, recorded by another hook of ours."""
    around = _PIECE.get()
    return around is not None and around.opening.key == key


def speaker() -> Piece | None:
    """The agent's reply that goes on right here.

    None where somebody else speaks: in tools, and in scopes of the user's own.
    """
    found = _PIECE.get()
    if found is None or found.opening.scope != "agent" or found.scope is not current_scope():
        return None
    return found


def open_piece(context: AttemptContext, opening: Opening) -> Piece:
    """Begin a piece under the current scope. Its own scope is current only where `Piece` says."""
    outside = ScopeFrame()
    with outside.running():
        around = current_scope()
        span_id = around.span_id if around is not None else ""
        if opening.kind is not None:
            span_id = context.recorder.start(
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
        return Piece(context.recorder, opening, scope, ScopeFrame())


def reply_opening(
    name: str | None, *, run_id: str | None = None, inside: str | None = None, key: Any = ()
) -> Opening:
    """How the reply of an agent begins: a run of its own, unless it goes on with another.

    Args:
        name: The agent's; one without a name is whoever the scope around names.
        run_id: The run that the reply goes on with.
        inside: Who makes the calls in the reply, where that is not the agent.
        key: See `Opening`.
    """
    around = current_scope()
    name = name or (around.agent if around is not None else None)
    same = around is not None and around.agent == name
    return Opening(
        kind=SpanKind.AGENT if name else SpanKind.OPERATION,
        scope="agent",
        name=name or "unnamed agent",
        agent=name,
        agent_run_id=run_id or (around.agent_run_id if around is not None and same else None),
        trainable=around is None or around.trainable,
        inside=inside if name else None,
        key=key,
    )


def tool_opening(name: str, call_id: str, arguments: Any, *, key: Any = ()) -> Opening:
    """How the use of a tool begins, by the agent that speaks here."""
    asks = speaker()
    return Opening(
        kind=SpanKind.TOOL,
        scope="tool",
        name=name,
        agent=asks.opening.agent if asks else None,
        agent_run_id=asks.agent_run_id if asks else None,
        key=key,
        attributes={
            semconv.GEN_AI_TOOL_NAME: name,
            semconv.GEN_AI_TOOL_CALL_ID: call_id,
            semconv.GEN_AI_TOOL_ARGUMENTS: arguments,
        },
    )


async def spoken_by(name: str, step: Callable[[], Awaitable[_T]]) -> _T:
    """Await `step`, whose requests hang under what goes on here and are `name`'s; never trained."""
    around = current_scope()
    scope = open_scope(
        "agent",
        span_id=around.span_id if around is not None else "",
        agent=name,
        agent_run_id=new_id("span"),
        trainable=False,
    )
    try:
        return await step()
    finally:
        close_scope(scope)
