"""What only the events of a reply report.

Who is handed a task, which calls of tools reach none, and which wait for the user's permission.
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
from agl_agentscope._usage import PARKED, Usage
from agl_agentscope._v2 import messages
from agl_core import semconv
from agl_core.tracing import SpanScope, active, guarded

_UNREACHED: Final = frozenset({"error", "denied", "interrupted"})
"""States of the result of a call that came to no tool: it names none, is wrong, or was forbidden."""


class ReplyEvents:
    """Looks at the events of one reply."""

    def __init__(self, agent: Agent, span: SpanScope, usage: Usage) -> None:
        self._agent = agent
        self._span = span
        self._usage = usage
        self._waits_for: list[str] = []

    def see(self, event: object) -> None:
        """Record what an event reports; most, such as those of each token, add nothing."""
        look = _LOOKS.get(type(event))  # isinstance is slow for classes of pydantic
        if look is not None:
            look(self, event)

    @guarded(FRAMEWORK)
    def handed_out(self, event: RequireExternalExecutionEvent) -> None:
        """Calls are done elsewhere; so are those by which a team's leader hands out tasks."""
        context = active()
        for call in event.tool_calls:
            self._usage.reached(self._agent, call.id)
            if context is not None:
                with self._span.running():
                    messages.record_handoff(context, self._agent.name, call)

    @guarded(FRAMEWORK)
    def parked(self, event: RequireUserConfirmEvent) -> None:
        """The reply ends here, with a message of the framework's own, until the user answers."""
        self._waits_for += [call.name for call in event.tool_calls]
        self._span.set_attributes({PARKED: list(self._waits_for)})

    @guarded(FRAMEWORK)
    def answered(self, event: Any) -> None:
        """A call has its result, which the framework wrote itself where the call reached no tool."""
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
