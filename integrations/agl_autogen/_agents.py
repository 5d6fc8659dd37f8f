"""Turns of agentchat's agents, and what their events say that no hook does."""

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
"""Answers of models that an agent's messages carry, on the span of its turn."""
RESPONSE: Final = "autogen.response"
"""Type of the message with which a turn ended."""


class AgentTurn(Watcher):
    """One turn of an agent, from the messages it is given to its response."""

    def __init__(self, span: SpanScope, agent: Any) -> None:
        """Watch the turn of `agent` that `span` records."""
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
        """A tool recorded this call itself."""
        self._ran.add(tool_call_id)

    def note(self, item: Any) -> None:
        """Record what an event, a message or a response says."""
        if isinstance(item, Response):
            for message in (*(item.inner_messages or ()), item.chat_message):
                self._note(message)
            self._response = type(item.chat_message).__name__
        elif not isinstance(item, ModelClientStreamingChunkEvent):
            self._note(item)

    def _saw(self, item: Any) -> None:
        self.note(item)
        if isinstance(item, Response):
            # The reader of the response may leave the rest of the stream unread.
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
            return  # an agent of the user's own may give anything
        if message.id in self._noted:
            return  # it comes again with the response
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
        """A call that reached no tool of AutoGen's: a workbench's own, an unknown name, no JSON."""
        asked = self._asked.get(result.call_id)
        given = asked.arguments if asked is not None else None
        attributes = tool_attributes(result.name, given, call_id=result.call_id)
        tool = self._record(SpanStart(SpanKind.TOOL, result.name, attributes=attributes))
        tool.end(
            failed=result.content if result.is_error else "",
            attributes={semconv.GEN_AI_TOOL_RESULT: result.content},
        )

    def _record(self, start: SpanStart) -> SpanScope:
        return TRACER.open(self._turn.recorder, start, parent=self._turn)


class _Within(Watcher):
    """A method of an agent that another of its methods called: the turn is the outer one's."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn

    def _saw(self, item: Any) -> None:
        self._turn.note(item)


@guarded(FRAMEWORK)
def begin_turn(agent: Any, *args: Any, **kwargs: Any) -> Watcher | None:
    """`agent` is given messages, by a team, a tool or the program."""
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
    """A runtime hands `message` to an agent of AutoGen's core."""
    del message, ctx
    context = active()
    if context is None:
        return None
    TURNS.of(context)
    return Handling(context, agent)


@guarded(FRAMEWORK)
def begin_team(team: Any, **kwargs: Any) -> Watcher | None:
    """A team starts to work on a task; it only adds structure, its agents stand below it."""
    del kwargs
    context = active()
    if context is None:
        return None
    return Watcher(TRACER.open(context.recorder, SpanStart(SpanKind.OPERATION, team.name)))
