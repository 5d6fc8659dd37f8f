"""Record what only a reply's events report.

These are tasks handed to another agent, tool calls that reach no tool, and tool calls that wait for
the user's permission.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from agentscope.agent import Agent
from agentscope.event import (
    RequireExternalExecutionEvent,
    RequireUserConfirmEvent,
    ToolResultEndEvent,
)

from agl_agentscope._spans import FRAMEWORK, TRACER
from agl_agentscope._usage import PARKED, ReplyingAgents
from agl_agentscope._v2 import messages
from agl_core import semconv
from agl_core.tracing import SpanScope, active, guarded

_UNREACHED: Final = frozenset({"error", "denied", "interrupted"})
"""States of the result of a call that reached no tool: unknown name, bad arguments, not allowed."""


class ReplyEvents:
    """Reads the events of one reply."""

    def __init__(self, agent: Agent, span: SpanScope, usage: ReplyingAgents) -> None:
        self._agent = agent
        self._span = span
        self._usage = usage
        self._waits_for: list[str] = []

    def see(self, event: object) -> None:
        """Record an event; most events, such as those of each token, are ignored."""
        look = _LOOKS.get(type(event))  # isinstance is slow for pydantic classes
        if look is not None:
            look(self, event)

    @guarded(FRAMEWORK)
    def handed_out(self, event: RequireExternalExecutionEvent) -> None:
        """Record tool calls that external code executes: a team leader assigns tasks with them."""
        context = active()
        for call in event.tool_calls:
            self._usage.reached(self._agent, call.id)
            if context is not None:
                with self._span.running():
                    messages.record_handoff(context, self._agent.name, call)

    @guarded(FRAMEWORK)
    def parked(self, event: RequireUserConfirmEvent) -> None:
        """Record that the reply ends with a message of the framework and waits for the user."""
        self._waits_for += [call.name for call in event.tool_calls]
        self._span.set_attributes({PARKED: list(self._waits_for)})

    @guarded(FRAMEWORK)
    def answered(self, event: Any) -> None:
        """Record a call whose result the framework wrote, because the call reached no tool."""
        call_id, state = event.tool_call_id, str(event.state)
        if self._usage.forget_reached(self._agent, call_id) or state not in _UNREACHED:
            return
        context, (call, words) = active(), messages.exchange(self._agent, call_id)
        if context is None or call is None:
            return
        with self._span.running():
            start = TRACER.tool(call.name, messages.arguments(call.input), call_id=call_id)
            tool = TRACER.open(context.recorder, start)
        tool.end(failed=str(words or state), attributes={semconv.GEN_AI_TOOL_RESULT: words})


_LOOKS: Final[Mapping[type[Any], Callable[[ReplyEvents, Any], None]]] = {
    RequireExternalExecutionEvent: ReplyEvents.handed_out,
    RequireUserConfirmEvent: ReplyEvents.parked,
    ToolResultEndEvent: ReplyEvents.answered,
}
