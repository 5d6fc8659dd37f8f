"""Runs of agentchat's agents, and what their events tell that no hook does."""

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

from agl_autogen import _handling
from agl_autogen._place import Place
from agl_autogen._work import FRAMEWORK, Watcher, Work, start_span
from agl_core import semconv
from agl_core.tracing import active, guarded
from agl_core.types import Scope, SpanKind

ANSWERS: Final = "autogen.answers"
"""Answers of models that an agent's messages carry, on the span of its turn."""
RESPONSE: Final = "autogen.response"
"""Type of the message with which a turn ended."""


class AgentRun(Watcher):
    """One turn of an agent, from the messages it is given to its response."""

    def __init__(self, place: Place, work: Work, agent: Any) -> None:
        self.agent = agent
        self._place = place
        self._work = work
        self._asked: dict[str, FunctionCall] = {}
        self._ran: set[str] = set()
        self._noted: set[str] = set()
        self._answers = 0
        self._response: str | None = None

    @property
    def scope(self) -> Scope:
        return self._work.scope

    def ran(self, tool_call_id: str) -> None:
        """A tool recorded this call itself."""
        self._ran.add(tool_call_id)

    def note(self, item: Any) -> None:
        """Record what an event, a message or a response tells."""
        if isinstance(item, Response):
            for message in (*(item.inner_messages or ()), item.chat_message):
                self._note(message)
            self._response = type(item.chat_message).__name__
        elif not isinstance(item, ModelClientStreamingChunkEvent):
            self._note(item)

    def _saw(self, item: Any) -> None:
        self.note(item)
        if isinstance(item, Response):
            # Whoever takes the response may leave the rest of the stream unread.
            self._finish(None)

    def _end(self, error: BaseException | None) -> None:
        self._place.leave(self)
        if error is not None or not self.scope.closed:
            self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        attributes: dict[str, Any] = {ANSWERS: self._answers}
        if self._response is not None:
            attributes[RESPONSE] = self._response
        self._work.end(error, attributes)

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
            self._record_handoff(message)

    def _record_tool(self, result: FunctionExecutionResult) -> None:
        """A call that reached no tool of AutoGen's: a workbench's own, an unknown name, no JSON."""
        asked = self._asked.get(result.call_id)
        span_id = start_span(
            self._work.recorder,
            "tool",
            result.name,
            parent_id=self.scope.span_id,
            attributes={
                semconv.GEN_AI_TOOL_NAME: result.name,
                semconv.GEN_AI_TOOL_CALL_ID: result.call_id,
                semconv.GEN_AI_TOOL_ARGUMENTS: asked.arguments if asked is not None else None,
            },
        )
        self._work.recorder.end(
            span_id,
            status="error" if result.is_error else "ok",
            error=result.content if result.is_error else "",
            attributes={semconv.GEN_AI_TOOL_RESULT: result.content},
        )

    def _record_handoff(self, message: HandoffMessage) -> None:
        span_id = self._work.recorder.start(
            SpanKind.MESSAGE,
            "handoff",
            parent_id=self.scope.span_id,
            attributes={
                semconv.AGL_FRAMEWORK: FRAMEWORK,
                semconv.AGL_HANDOFF_FROM: message.source,
                semconv.AGL_HANDOFF_TO: message.target,
                semconv.AGL_MESSAGE: {"role": message.source, "content": message.content},
            },
        )
        self._work.recorder.end(span_id)


class _Within(Watcher):
    """A method of an agent that another of its methods called: the run is the outer one's."""

    def __init__(self, run: AgentRun) -> None:
        self._run = run

    def _saw(self, item: Any) -> None:
        self._run.note(item)

    def _end(self, error: BaseException | None) -> None:
        del error


@guarded(FRAMEWORK)
def begin_turn(agent: Any, *args: Any, **kwargs: Any) -> Watcher | None:
    """`agent` is given messages, by a team, a tool or the program."""
    del args, kwargs
    context = active()
    if context is None:
        return None
    place = Place.of(context)
    around = place.run
    if around is not None and around.agent is agent:
        return _Within(around)
    run = AgentRun(place, Work.begin(context, "agent", agent.name), agent)
    place.enter(run)
    return run


@guarded(FRAMEWORK)
def begin_handling(agent: Any, message: Any, ctx: Any) -> Watcher | None:
    """A runtime hands `message` to an agent of AutoGen's core."""
    del message, ctx
    context = active()
    if context is None:
        return None
    Place.of(context)
    return _handling.begin(context, agent)


@guarded(FRAMEWORK)
def begin_team(team: Any, **kwargs: Any) -> Watcher | None:
    """A team starts to work on a task."""
    del kwargs
    context = active()
    return _Team(Work.begin(context, "operation", team.name)) if context is not None else None


class _Team(Watcher):
    """Only adds structure: its agents stand below it."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def _saw(self, item: Any) -> None:
        del item

    def _end(self, error: BaseException | None) -> None:
        self._work.end(error)
