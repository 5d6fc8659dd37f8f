"""Middleware that records AgentScope's replies, calls and tools as spans and scopes.

The only state of `AglMiddleware` is for warnings about agents that are used wrongly, so one object
serves any number of agents, rollouts, threads and tasks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from agentscope.agent import Agent
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatResponse
from agentscope.tool import ToolResponse

from agl_agentscope._spans import CONTEXT, FRAMEWORK, SUMMARIZER, TRACER
from agl_agentscope._usage import CLOCK, SHARED, ReplyingAgents
from agl_agentscope._v2 import messages
from agl_agentscope._v2.calls import recording
from agl_agentscope._v2.events import ReplyEvents
from agl_agentscope._v2.thinking import split
from agl_core import semconv
from agl_core.tracing import AttemptContext, SpanScope, SpanStart, active, guarded, run_as

Next = Callable[..., Any]
_FAILED: Final = "error"
"""State of a tool's result that contains the message of an exception."""


class AglMiddleware(MiddlewareBase):
    """Records an agent's replies, calls and tools, and adds its name to each model request.

    Outside a rollout it does nothing, so production code may keep it. Put it last in the list:
    model calls of middleware after it would count as the agent's.
    """

    def __init__(self, live: Callable[[], bool] = lambda: True) -> None:
        """Make a middleware that records while `live` returns True."""
        self._live = live
        self._usage = ReplyingAgents()

    def on_reply(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> AsyncGenerator[Any, None]:
        """Record one reply of an agent."""
        span = self._open_reply(agent, input_kwargs)
        items = next_handler(**input_kwargs)
        if span is None:
            return items
        return span.stream(items, ReplyEvents(agent, span, self._usage).see)

    async def on_model_call(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        """Record one model call of an agent, and split thinking from its answer's text."""
        span = self._open_turn(agent)
        if span is None:
            return await next_handler(**input_kwargs)
        model = recording(input_kwargs["current_model"], span)
        given = {**input_kwargs, "current_model": model}
        answer: Any = await span.run(lambda: next_handler(**given))
        if isinstance(answer, ChatResponse):
            span.end()
            return split(answer)
        stream: AsyncGenerator[ChatResponse, None] = answer
        return split(span.stream(stream))

    def on_acting(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> AsyncGenerator[Any, None]:
        """Record one tool call."""
        span = self._open_tool(agent, input_kwargs)
        items = next_handler(**input_kwargs)
        if span is None:
            return items
        return span.stream(items, lambda chunk: _see_result(span, chunk), kind=ToolResponse)

    async def on_compress_context(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> None:
        """Record the calls that summarize an agent's context under `SUMMARIZER`."""
        del agent
        context = active() if self._live() else None
        if context is None:
            await next_handler(**input_kwargs)
            return
        await run_as(context.recorder, SUMMARIZER, lambda: next_handler(**input_kwargs))

    @guarded(FRAMEWORK)
    def _open_reply(self, agent: Agent, given: Mapping[str, Any]) -> SpanScope | None:
        context = active() if self._live() else None
        key = ("reply", id(agent))
        if context is None or _is_seen(key):
            return None
        run_id = None
        if isinstance(given.get("inputs"), messages.RESUMING):
            run_id = self._usage.run_id(agent, context)
        start = TRACER.agent(agent.name, run_id=run_id, speaker=CONTEXT)
        span = _open(context, start, key)
        self._look(agent, context, span)
        return span

    def _look(self, agent: Agent, context: AttemptContext, span: SpanScope) -> None:
        """Mark the reply of an agent that is used wrongly."""
        span.on_end = lambda: self._usage.leave(agent)
        if wrong := self._usage.enter(agent, context, remembers=bool(agent.state.context)):
            span.set_attributes({SHARED: wrong})
        self._usage.began(agent, span.span_run_id)
        if agent.injection_config.inject_runtime_state:
            span.set_attributes({CLOCK: True})
            self._usage.warn_of_clock(
                agent, "give Agent(injection_config=InjectionConfig(inject_runtime_state=False))"
            )

    @guarded(FRAMEWORK)
    def _open_turn(self, agent: Agent) -> SpanScope | None:
        """Open the agent's scope for one model call; each of its requests has its own span."""
        context = active() if self._live() else None
        key = ("call", id(agent))
        if context is None or _is_seen(key):
            return None
        speaker = TRACER.speaker()
        if speaker is None:
            return _open(context, SpanStart(None, scope="operation"), key)
        agent_name, run_id = speaker.span_agent, speaker.span_run_id
        start = SpanStart(None, scope="agent", agent=agent_name, agent_run_id=run_id)
        return _open(context, start, key)

    @guarded(FRAMEWORK)
    def _open_tool(self, agent: Agent, given: Mapping[str, Any]) -> SpanScope | None:
        context, call = active() if self._live() else None, given["tool_call"]
        key = ("tool", id(agent), call.id)
        if context is None or _is_seen(key):
            return None
        self._usage.reached(agent, call.id)
        arguments = messages.arguments(call.input)
        return _open(context, TRACER.tool(call.name, arguments, call_id=call.id), key)


def _open(context: AttemptContext, start: SpanStart, key: object) -> SpanScope:
    span = TRACER.open(context.recorder, start)
    span.key = key
    return span


def _is_seen(key: object) -> bool:
    """Return whether another `AglMiddleware` already records the same reply, call or tool."""
    around = TRACER.innermost()
    return around is not None and around.key == key


@guarded(FRAMEWORK)
def _see_result(span: SpanScope, response: Any) -> None:
    result = messages.result(response.content)
    span.set_attributes({semconv.GEN_AI_TOOL_RESULT: result})
    if str(response.state) == _FAILED:
        span.end(failed=str(result))
