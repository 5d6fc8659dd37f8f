"""A piece of a framework's work: its span, and its scope wherever the framework does it.

A streamed piece is done in many small steps, each driven by whoever reads the stream. Its scope is
current in those steps and nowhere between them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from agl_core import semconv
from agl_core.tracing._context import AttemptContext
from agl_core.tracing._guard import report
from agl_core.tracing._recorder import Recorder
from agl_core.tracing._scopes import ScopeFrame, close_scope, current_scope, open_scope, scope_in
from agl_core.tracing._values import text
from agl_core.types import Scope, ScopeKind, SpanKind
from agl_core.types.ids import new_id

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


__all__ = ["UNNAMED", "Opening", "Piece", "Pieces", "spoken_by"]

UNNAMED: Final = "unnamed agent"
"""Name of the span of an agent that has none."""


class Pieces:
    """Opens the pieces of one framework's work; make one, as a constant of the integration."""

    def __init__(
        self, framework: str, *, control_flow: tuple[type[BaseException], ...] = ()
    ) -> None:
        """For one framework.

        Args:
            framework: The integration's name, which every span bears.
            control_flow: Exceptions by which the framework goes on elsewhere; what they leave has
                not failed.
        """
        self.framework = framework
        self.control_flow = control_flow
        self.current: ContextVar[Piece | None] = ContextVar(f"agl_{framework}_piece", default=None)
        """The innermost piece in whose step this code runs."""

    def open(self, context: AttemptContext, opening: Opening) -> Piece:
        """Begin a piece under the current scope. Its own is current only where `Piece` says."""
        recorder, around = context.recorder, current_scope()
        agent, run_id = opening.agent, opening.agent_run_id
        if opening.kind is not None:
            attributes = {semconv.AGL_FRAMEWORK: self.framework, **(opening.attributes or {})}
            span_id = recorder.start(
                opening.kind,
                opening.name,
                agent=agent,
                agent_run_id=run_id,
                attributes=attributes,
                scope=around,
            )
        else:
            span_id = around.span_id if around is not None else ""
        if opening.scope == "tool" or opening.inside is not None:
            agent, run_id = opening.inside, None
        scope = scope_in(around, opening.scope, span_id, agent, run_id, opening.trainable)
        return Piece(self, recorder, opening, scope)

    def speaker(self) -> Piece | None:
        """The agent's reply that goes on right here.

        None where somebody else speaks: in tools, and in scopes of the user's own.
        """
        found = self.current.get()
        if found is None or found.opening.scope != "agent" or found.scope is not current_scope():
            return None
        return found

    def is_seen(self, key: tuple[Any, ...]) -> bool:
        """Whether the piece around is this very work, recorded by another hook of ours."""
        around = self.current.get()
        return around is not None and around.opening.key == key

    def reply(
        self,
        name: str | None,
        *,
        run_id: str | None = None,
        inside: str | None = None,
        key: tuple[Any, ...] = (),
    ) -> Opening:
        """How the reply of an agent begins: a run of its own, unless it goes on with another.

        Args:
            name: The agent's; one without a name is whoever the scope around names.
            run_id: The run that the reply goes on with.
            inside: Who makes the calls in the reply, where that is not the agent.
            key: See `Opening`.
        """
        around = current_scope()
        name = text(name) if name else (around.agent if around is not None else None)
        if around is not None and around.agent == name:
            run_id = run_id or around.agent_run_id
        return Opening(
            kind=SpanKind.AGENT if name else SpanKind.OPERATION,
            scope="agent",
            name=name or UNNAMED,
            agent=name,
            agent_run_id=run_id,
            trainable=around is None or around.trainable,
            inside=inside if name else None,
            key=key,
        )

    def call(self, model: str) -> Opening:
        """How a call of a model begins, by the agent that speaks here.

        Args:
            model: The name that is asked for; empty where nobody says.
        """
        asks = self.speaker()
        attributes = {semconv.GEN_AI_OPERATION_NAME: "chat"}
        if model:
            attributes[semconv.GEN_AI_REQUEST_MODEL] = model
        return Opening(
            kind=SpanKind.LLM,
            scope="call",
            name=model or "model",
            agent=asks.opening.agent if asks is not None else None,
            agent_run_id=asks.agent_run_id if asks is not None else None,
            trainable=asks is None or asks.opening.trainable,
            attributes=attributes,
        )

    def tool(
        self, name: str, call_id: str | None, arguments: Any, *, key: tuple[Any, ...] = ()
    ) -> Opening:
        """How the use of a tool begins, by the agent that speaks here.

        Args:
            name: The tool's.
            call_id: The id under which the model asked for it, where it has one.
            arguments: What it is used with.
            key: See `Opening`.
        """
        asks = self.speaker()
        attributes = {
            semconv.GEN_AI_TOOL_NAME: name,
            semconv.GEN_AI_TOOL_ARGUMENTS: arguments,
        }
        if call_id:
            attributes[semconv.GEN_AI_TOOL_CALL_ID] = call_id
        return Opening(
            kind=SpanKind.TOOL,
            scope="tool",
            name=name,
            agent=asks.opening.agent if asks is not None else None,
            agent_run_id=asks.agent_run_id if asks is not None else None,
            key=key,
            attributes=attributes,
        )


async def spoken_by(
    name: str, step: Callable[[], Awaitable[_T]], *, parent_span: str | None = None
) -> _T:
    """Await `step`, whose requests are those of `name`, who is never trained.

    Args:
        name: Belongs to the framework, such as ``@summarizer``.
        step: Asks a model.
        parent_span: Span that the requests hang under; that of the current scope by default.
    """
    around = current_scope()
    if parent_span is None:
        parent_span = around.span_id if around is not None else ""
    scope = open_scope(
        "agent",
        span_id=parent_span,
        agent=name,
        agent_run_id=new_id("span"),
        trainable=False,
        parent=around,
    )
    try:
        return await step()
    finally:
        close_scope(scope)
