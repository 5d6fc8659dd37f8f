"""The pieces of a framework's work: what each begins with, and who speaks in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from agl_core import semconv
from agl_core.tracing._piece import Opening, Piece
from agl_core.tracing.context import (
    AttemptContext,
    close_scope,
    current_scope,
    open_scope,
    scope_in,
)
from agl_core.tracing.values import text
from agl_core.types import SpanKind
from agl_core.types.ids import new_id

__all__ = ["UNNAMED", "Opening", "Piece", "Pieces", "spoken_by"]

UNNAMED: Final = "unnamed agent"
"""Name of the span of an agent that has none."""
_T = TypeVar("_T")


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
