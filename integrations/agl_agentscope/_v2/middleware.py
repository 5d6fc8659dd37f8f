"""AgentScope's middleware, turned into spans and scopes.

`AglMiddleware` holds nothing but what it needs to warn of agents that are used wrongly, so one
object serves any number of agents, rollouts, threads and tasks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from agentscope.agent import Agent
from agentscope.middleware import MiddlewareBase
from agentscope.model import ChatResponse
from agentscope.tool import ToolResponse

from agl_agentscope._pieces import CONTEXT, FRAMEWORK, PIECES, SUMMARIZER
from agl_agentscope._usage import CLOCK, SHARED, Usage
from agl_agentscope._v2 import told
from agl_agentscope._v2.calls import recording
from agl_agentscope._v2.events import ReplyEvents
from agl_agentscope._v2.thinking import split
from agl_core import semconv
from agl_core.tracing import AttemptContext, Opening, Piece, active, guarded, spoken_by

Next = Callable[..., Any]
_FAILED: Final = "error"
"""State of a tool's result that holds the words of an exception."""


class AglMiddleware(MiddlewareBase):
    """Records what an agent does, and tells its requests who speaks.

    Outside a rollout it does nothing, so it may stay in production. Give it last: only what lies
    inside of it is the agent's own model call.
    """

    def __init__(self, live: Callable[[], bool] = lambda: True) -> None:
        """One that records while `live` says so."""
        self._live = live
        self._usage = Usage()

    def on_reply(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> AsyncGenerator[Any, None]:
        """Go around one reply of an agent; the framework's signature."""
        piece = self._open_reply(agent, input_kwargs)
        items = next_handler(**input_kwargs)
        if piece is None:
            return items
        return piece.through(items, ReplyEvents(agent, piece, self._usage).see)

    async def on_model_call(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        """Go around one call of an agent's model; the framework's signature."""
        piece = self._open_turn(agent)
        if piece is None:
            return await next_handler(**input_kwargs)
        model = recording(input_kwargs["current_model"], piece.opening)
        given = {**input_kwargs, "current_model": model}
        answer: Any = await piece.run(lambda: next_handler(**given))
        if isinstance(answer, ChatResponse):
            piece.end()
            return split(answer)
        stream: AsyncGenerator[ChatResponse, None] = answer
        return split(piece.through(stream))

    def on_acting(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> AsyncGenerator[Any, None]:
        """Go around one use of a tool; the framework's signature."""
        piece = self._open_tool(agent, input_kwargs)
        items = next_handler(**input_kwargs)
        if piece is None:
            return items
        return piece.through(items, lambda chunk: _see_result(piece, chunk), kind=ToolResponse)

    async def on_compress_context(
        self, agent: Agent, input_kwargs: dict[str, Any], next_handler: Next
    ) -> None:
        """Let what summarises an agent's context speak for itself; the framework's signature."""
        del agent
        if not self._live() or active() is None:
            await next_handler(**input_kwargs)
            return
        await spoken_by(SUMMARIZER, lambda: next_handler(**input_kwargs))

    @guarded(FRAMEWORK)
    def _open_reply(self, agent: Agent, given: Mapping[str, Any]) -> Piece | None:
        context = active() if self._live() else None
        key = ("reply", id(agent))
        if context is None or PIECES.is_seen(key):
            return None
        run_id = None
        if isinstance(given.get("inputs"), told.RESUMING):
            run_id = self._usage.run_id(agent, context)
        opening = PIECES.reply(agent.name, run_id=run_id, inside=CONTEXT, key=key)
        piece = PIECES.open(context, opening)
        self._look(agent, context, piece)
        return piece

    def _look(self, agent: Agent, context: AttemptContext, piece: Piece) -> None:
        """Mark the reply of an agent that is used wrongly."""
        piece.left = lambda: self._usage.leave(agent)
        if wrong := self._usage.enter(agent, context, remembers=bool(agent.state.context)):
            piece.tell({SHARED: wrong})
        self._usage.began(agent, piece.agent_run_id)
        if agent.injection_config.inject_runtime_state:
            piece.tell({CLOCK: True})
            self._usage.warn_of_clock(
                agent, "give Agent(injection_config=InjectionConfig(inject_runtime_state=False))"
            )

    @guarded(FRAMEWORK)
    def _open_turn(self, agent: Agent) -> Piece | None:
        """The agent speaks; each request that its model makes for that has a span."""
        context = active() if self._live() else None
        key = ("call", id(agent))
        if context is None or PIECES.is_seen(key):
            return None
        asks = PIECES.speaker()
        return PIECES.open(
            context,
            Opening(
                kind=None,
                scope="agent" if asks else "operation",
                agent=asks.opening.agent if asks else None,
                agent_run_id=asks.agent_run_id if asks else None,
                trainable=asks.opening.trainable if asks else True,
                key=key,
            ),
        )

    @guarded(FRAMEWORK)
    def _open_tool(self, agent: Agent, given: Mapping[str, Any]) -> Piece | None:
        context, call = active() if self._live() else None, given["tool_call"]
        key = ("tool", id(agent), call.id)
        if context is None or PIECES.is_seen(key):
            return None
        self._usage.reached(agent, call.id)
        return PIECES.open(
            context, PIECES.tool(call.name, call.id, told.arguments(call.input), key=key)
        )


@guarded(FRAMEWORK)
def _see_result(piece: Piece, response: Any) -> None:
    result = told.result(response.content)
    piece.tell({semconv.GEN_AI_TOOL_RESULT: result})
    if str(response.state) == _FAILED:
        piece.end(failed=str(result))
