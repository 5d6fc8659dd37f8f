"""The framework's middleware, turned into spans and scopes.

`AglMiddleware` goes around an agent's run and hands the other two on to its chat client. All three
hold no state, so that pipelines which the framework caches by their middleware stay valid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from agent_framework import (
    AgentContext,
    AgentMiddleware,
    ChatContext,
    ChatMiddleware,
    ChatMiddlewareLayer,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionMiddleware,
    MiddlewareTermination,
)

from agl_agent_framework import _told
from agl_agent_framework._compaction import speaking_for_itself
from agl_agent_framework._pieces import (
    FRAMEWORK,
    Opening,
    Piece,
    Speaker,
    open_piece,
    speaker,
)
from agl_core import semconv
from agl_core.tracing import active, current_scope, guarded
from agl_core.types import SpanKind

CallNext = Callable[[], Awaitable[None]]

UNNAMED: Final = "unnamed agent"
"""Name of the span of an agent that has none."""
CONTEXT: Final = "@context"
"""Makes the calls of context providers and middleware in an agent's run; never trained."""
_STORE: Final = "store"
_SEEN: Final = "agl_run"
"""In the metadata of an agent's context while one `AglMiddleware` records its run."""


class AglMiddleware(AgentMiddleware):
    """Records what an agent does, and tells its requests who speaks.

    Outside a rollout it does nothing, so it may stay in production. One instance serves any number
    of agents, rollouts, threads and tasks; a run that reaches several instances is recorded once.
    """

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Go around one run of an agent; the framework's signature."""
        piece = None if _SEEN in context.metadata else _open_run(context)
        if piece is None:
            await call_next()
            return
        context.metadata[_SEEN] = True
        try:
            await piece.run(call_next)
        finally:
            # Middleware outside may go on to run the agent again, which is a run of its own.
            context.metadata.pop(_SEEN, None)
        piece.result(context.result)


class AglChatMiddleware(ChatMiddleware):
    """Records one call of an agent's model; handed on by `AglMiddleware`."""

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Go around one model call; the framework's signature."""
        piece = _open_call(context)
        if piece is None:
            await call_next()
            return
        await piece.run(call_next)
        piece.result(context.result, _told.answer)


class AglFunctionMiddleware(FunctionMiddleware):
    """Records one use of a tool; handed on by `AglMiddleware`."""

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Go around one tool call; the framework's signature."""
        asks = speaker()
        piece = _open_tool(context, asks)
        if piece is None:
            await call_next()
            return
        try:
            await piece.run(call_next)
        except MiddlewareTermination as stop:
            _told.handoff(piece.scope.span_id, stop.result, asks)
            raise
        piece.result(context.result, _told.tool_result)


_CHAT: Final = AglChatMiddleware()
_FUNCTION: Final = AglFunctionMiddleware()


@guarded(FRAMEWORK)
def _open_run(context: AgentContext) -> Piece | None:
    attempt = active()
    if attempt is None:
        return None
    agent: Any = context.agent
    around = current_scope()
    name: str | None = agent.name or (around.agent if around is not None else None)
    same = around is not None and around.agent == name
    trainable = around is None or around.trainable
    records_calls = _hand_on(context)
    _keep_history_here(context)
    piece = open_piece(
        attempt.recorder,
        Opening(
            kind=SpanKind.AGENT if name else SpanKind.OPERATION,
            scope="agent",
            name=name or UNNAMED,
            agent=name,
            agent_run_id=around.agent_run_id if around is not None and same else None,
            trainable=trainable,
            # Of what is sent in the run, only the calls of its own chat client are the agent's.
            inside=CONTEXT if records_calls and name else None,
        ),
    )
    scope = piece.scope
    run_id = around.agent_run_id if around is not None and same else scope.span_id
    piece.speaker = Speaker(name, run_id if name else None, trainable, scope)
    return piece


def _hand_on(context: AgentContext) -> bool:
    """Put our other middleware before all that the run brings; tell whether calls reach it."""
    client = getattr(context.agent, "client", None)
    layers: tuple[tuple[type[Any], Any], ...] = (
        (FunctionInvocationLayer, _FUNCTION),
        (ChatMiddlewareLayer, _CHAT),
    )
    ours = [middleware for layer, middleware in layers if isinstance(client, layer)]
    if ours:
        given = context.client_kwargs.get("middleware") or ()
        others = [each for each in given if each is not _CHAT and each is not _FUNCTION]
        context.client_kwargs["middleware"] = [*ours, *others]
    return _CHAT in ours


def _keep_history_here(context: AgentContext) -> None:
    """Let the agent send its whole history, where it says nothing else: the gateway keeps none.

    Clients of Responses send the id of the response before, and the server knows the rest.
    """
    agent: Any = context.agent
    if not getattr(getattr(agent, "client", None), "STORES_BY_DEFAULT", False):
        return
    options: Mapping[str, Any] = context.options or {}
    defaults: Mapping[str, Any] = getattr(agent, "default_options", None) or {}
    if options.get(_STORE) is None and defaults.get(_STORE) is None:
        context.options = {**options, _STORE: False}


@guarded(FRAMEWORK)
def _open_call(context: ChatContext) -> Piece | None:
    attempt = active()
    if attempt is None:
        return None
    asks = speaker()
    options: Any = context.options or {}
    model = options.get("model") or getattr(context.client, "model", None)
    around = current_scope()
    piece = open_piece(
        attempt.recorder,
        Opening(
            kind=SpanKind.LLM,
            scope="call",
            name=str(model or "model"),
            agent=asks.agent if asks else None,
            agent_run_id=asks.agent_run_id if asks else None,
            trainable=asks.trainable if asks else True,
            attributes={
                semconv.GEN_AI_OPERATION_NAME: "chat",
                **({semconv.GEN_AI_REQUEST_MODEL: str(model)} if model else {}),
            },
        ),
    )
    speaking_for_itself(context, around, asks.agent if asks else None)
    return piece


@guarded(FRAMEWORK)
def _open_tool(context: FunctionInvocationContext, asks: Speaker | None) -> Piece | None:
    attempt = active()
    if attempt is None:
        return None
    name = context.function.name
    attributes = {
        semconv.GEN_AI_TOOL_NAME: name,
        semconv.GEN_AI_TOOL_ARGUMENTS: _told.arguments(context.arguments),
    }
    if call_id := context.metadata.get("call_id"):
        attributes[semconv.GEN_AI_TOOL_CALL_ID] = str(call_id)
    return open_piece(
        attempt.recorder,
        Opening(
            kind=SpanKind.TOOL,
            scope="tool",
            name=name,
            agent=asks.agent if asks else None,
            agent_run_id=asks.agent_run_id if asks else None,
            attributes=attributes,
        ),
    )
