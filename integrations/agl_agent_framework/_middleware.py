"""Middleware that records the framework's runs, calls and tools as spans and scopes.

`AglMiddleware` wraps an agent's run and passes the other two to its chat client. All three are
stateless, so that pipelines which the framework caches by their middleware stay valid.
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

from agl_agent_framework import _asked, _messages
from agl_agent_framework._compaction import speaking_for_itself
from agl_agent_framework._spans import FRAMEWORK, TRACER, end_with_result
from agl_core.tracing import SpanScope, active, current_scope, guarded

CallNext = Callable[[], Awaitable[None]]

CONTEXT: Final = "@context"
"""Agent of the calls by context providers and middleware in an agent's run; never trained."""
_STORE: Final = "store"
_SEEN: Final = "agl_run"
"""Key in the metadata of an agent's context while an `AglMiddleware` records its run."""


class AglMiddleware(AgentMiddleware):
    """Records an agent's runs, calls and tools, and adds the agent's name to each model request.

    Outside a rollout it does nothing, so production code may keep it. One instance serves any
    number of agents, rollouts, threads and tasks; a run that reaches several instances is recorded
    once.
    """

    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        """Record one run of an agent."""
        span = None if _SEEN in context.metadata else _open_run(context)
        if span is None:
            await call_next()
            return
        context.metadata[_SEEN] = True
        try:
            await span.run(call_next)
        finally:
            # Outer middleware may run the agent again: that is another run.
            context.metadata.pop(_SEEN, None)
        end_with_result(span, context.result)


class AglChatMiddleware(ChatMiddleware):
    """Records the calls of an agent's model; `AglMiddleware` adds it to the chat client."""

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        """Record one model call."""
        run = TRACER.speaker()
        span = _open_call(context)
        if span is None:
            await call_next()
            return

        def read(response: Any) -> Mapping[str, Any]:
            _asked.note_answer(run, response)
            return _messages.answer(response)

        await span.run(call_next)
        end_with_result(span, context.result, read)


class AglFunctionMiddleware(FunctionMiddleware):
    """Records tool calls; `AglMiddleware` adds it to the chat client."""

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        """Record one tool call."""
        span = _open_tool(context)
        if span is None:
            await call_next()
            return
        try:
            await span.run(call_next)
        except MiddlewareTermination as stop:
            _messages.record_handoff(span, stop.result)
            raise
        end_with_result(span, context.result, _messages.tool_result)


_CHAT: Final = AglChatMiddleware()
_FUNCTION: Final = AglFunctionMiddleware()


@guarded(FRAMEWORK)
def _open_run(context: AgentContext) -> SpanScope | None:
    attempt = active()
    if attempt is None:
        return None
    # Only the requests of the agent's own chat client are the agent's.
    inside = CONTEXT if _hand_on(context) else None
    _keep_history_here(context)
    return TRACER.open(attempt.recorder, TRACER.agent(context.agent.name, speaker=inside))


def _hand_on(context: AgentContext) -> bool:
    """Put our other middleware before the run's own; return whether model calls reach it."""
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
    """Make the agent send its whole history, unless its options set ``store``.

    Clients of the Responses API by default send only the id of the previous response, and the
    gateway stores no responses.
    """
    agent: Any = context.agent
    if not getattr(getattr(agent, "client", None), "STORES_BY_DEFAULT", False):
        return
    options: Mapping[str, Any] = context.options or {}
    defaults: Mapping[str, Any] = getattr(agent, "default_options", None) or {}
    if options.get(_STORE) is None and defaults.get(_STORE) is None:
        context.options = {**options, _STORE: False}


@guarded(FRAMEWORK)
def _open_call(context: ChatContext) -> SpanScope | None:
    attempt = active()
    if attempt is None:
        return None
    _asked.record_unreached(context.messages)
    around, options = current_scope(), context.options or {}
    model = options.get("model") or getattr(context.client, "model", None) or ""
    span = TRACER.open(attempt.recorder, TRACER.call(str(model)))
    speaking_for_itself(context, around, span.span_agent)
    return span


@guarded(FRAMEWORK)
def _open_tool(context: FunctionInvocationContext) -> SpanScope | None:
    attempt = active()
    if attempt is None:
        return None
    call_id = context.metadata.get("call_id")
    _asked.note_taken(call_id)
    given = _messages.arguments(context.arguments)
    start = TRACER.tool(context.function.name, given, call_id=call_id)
    return TRACER.open(attempt.recorder, start)
