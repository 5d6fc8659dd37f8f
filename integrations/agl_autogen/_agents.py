"""Record turns of agentchat's agents, and tool calls and handoffs that only their events report."""

from __future__ import annotations

from typing import Any, Final

from autogen_agentchat.base import Response
from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    HandoffMessage,
    ModelClientStreamingChunkEvent,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
)
from autogen_core import FunctionCall
from autogen_core.models import FunctionExecutionResult

from agl_autogen._speakers import TURNS, Handling, Turn
from agl_autogen._watching import FRAMEWORK, TRACER, Watcher
from agl_core import semconv
from agl_core.tracing import SpanScope, SpanStart, active, guarded, handoff, tool_attributes
from agl_core.types import SpanKind

ANSWERS: Final = "autogen.answers"
"""On the span of a turn: number of its messages with a model's usage, one for each answer."""
RESPONSE: Final = "autogen.response"
"""On the span of a turn: type of the message with which it ended."""


class AgentTurn(Watcher):
    """One turn of an agent, from its input messages to its response."""

    def __init__(self, span: SpanScope, agent: Any) -> None:
        """Watch a turn.

        Args:
            span: The span of the turn.
            agent: The agent of the turn.
        """
        super().__init__(span)
        self.agent = agent
        self._turn = span
        self._asked: dict[str, FunctionCall] = {}
        self._ran: set[str] = set()
        self._noted: set[str] = set()
        self._answers = 0
        self._response: str | None = None
        self._finished = False

    def ran(self, tool_call_id: str) -> None:
        """Mark a call as recorded by the tool itself."""
        self._ran.add(tool_call_id)

    def note(self, item: Any) -> None:
        """Record the tool calls and handoffs in an event, a message or a response."""
        if isinstance(item, Response):
            for message in (*(item.inner_messages or ()), item.chat_message):
                self._note(message)
            self._response = type(item.chat_message).__name__
        elif not isinstance(item, ModelClientStreamingChunkEvent):
            self._note(item)

    def _saw(self, item: Any) -> None:
        self.note(item)
        if isinstance(item, Response):
            # The caller may stop reading the stream after the response.
            self._finish(None)

    def _end(self, error: BaseException | None) -> None:
        if not self._finished:
            self._finish(error)
        elif error is not None:
            self._turn.recorder.end_with(self._turn.span_id, error)

    def _finish(self, error: BaseException | None) -> None:
        self._finished = True
        attributes: dict[str, Any] = {ANSWERS: self._answers}
        if self._response is not None:
            attributes[RESPONSE] = self._response
        self._turn.end(error, attributes=attributes)

    def _note(self, message: Any) -> None:
        if not isinstance(message, (BaseChatMessage, BaseAgentEvent)):
            return  # a custom agent may yield any type
        if message.id in self._noted:
            return  # the response repeats it
        self._noted.add(message.id)
        self._answers += message.models_usage is not None
        if isinstance(message, ToolCallRequestEvent):
            self._asked.update({call.id: call for call in message.content})
        elif isinstance(message, ToolCallExecutionEvent):
            for result in message.content:
                if result.call_id not in self._ran:
                    self._record_tool(result)
        elif isinstance(message, HandoffMessage):
            said = {"role": message.source, "content": message.content}
            self._record(
                handoff(message.source, message.target, attributes={semconv.AGL_MESSAGE: said})
            ).end()

    def _record_tool(self, result: FunctionExecutionResult) -> None:
        """Record a call that no AutoGen tool recorded.

        Examples are a workbench's own tool, an unknown name, and arguments that are not JSON.
        """
        asked = self._asked.get(result.call_id)
        given = asked.arguments if asked is not None else None
        attributes = tool_attributes(result.name, given, call_id=result.call_id)
        tool = self._record(SpanStart(SpanKind.TOOL, result.name, attributes=attributes))
        tool.end(
            failed=result.content if result.is_error else None,
            attributes={semconv.GEN_AI_TOOL_RESULT: result.content},
        )

    def _record(self, start: SpanStart) -> SpanScope:
        return TRACER.open(self._turn.recorder, start, parent=self._turn)


class _Within(Watcher):
    """A call of an agent's method by another of its methods: both belong to the outer turn."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn

    def _saw(self, item: Any) -> None:
        self._turn.note(item)


@guarded(FRAMEWORK)
def begin_turn(agent: Any, *args: Any, **kwargs: Any) -> Watcher | None:
    """Begin a turn of `agent`, which a team, a tool or the program called."""
    del args, kwargs
    context = active()
    if context is None:
        return None
    turns = TURNS.of(context)
    around = turns.here()
    if around is not None and around.agent is agent:
        return _Within(around)
    span = TRACER.open(context.recorder, TRACER.agent(agent.name))
    turn = AgentTurn(span, agent)
    turns.enter(span, turn)
    return turn


@guarded(FRAMEWORK)
def begin_handling(agent: Any, message: Any, ctx: Any) -> Watcher | None:
    """Watch an agent of AutoGen's core handle a message."""
    del message, ctx
    context = active()
    if context is None:
        return None
    TURNS.of(context)
    return Handling(context, agent)


@guarded(FRAMEWORK)
def begin_team(team: Any, **kwargs: Any) -> Watcher | None:
    """Open a span for a team's work on a task; it is only the parent of its agents' spans."""
    del kwargs
    context = active()
    if context is None:
        return None
    return Watcher(TRACER.open(context.recorder, SpanStart(SpanKind.OPERATION, team.name)))
