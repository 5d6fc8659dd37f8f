"""Find the current AutoGen agent: the one whose turn or handling of a message is running."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final, Protocol

from autogen_agentchat.teams._group_chat._base_group_chat_manager import BaseGroupChatManager
from autogen_agentchat.teams._group_chat._selector_group_chat import SelectorGroupChatManager

from agl_autogen._watching import FRAMEWORK, TRACER, Watcher
from agl_core.tracing import (
    AttemptContext,
    Recorder,
    SpanScope,
    SpanStart,
    Tables,
    active,
    current_scope,
    scope_around,
)
from agl_core.types import Scope, SpanKind

OWNED_PREFIX: Final = "@"
"""Prefix of reserved names: agents of the framework, which are never trained."""
SELECTOR: Final = OWNED_PREFIX + "selector"
_MANAGER: Final = OWNED_PREFIX + "manager"
_HANDLING: ContextVar[Handling | None] = ContextVar("agl_autogen_handling", default=None)


class Turn(Protocol):
    """A turn of an agent of agentchat."""

    agent: Any

    def ran(self, tool_call_id: str) -> None:
        """Mark a call as recorded by the tool itself."""
        ...

    def note(self, item: Any) -> None:
        """Record the tool calls and handoffs in an event, a message or a response."""
        ...


class Turns:
    """The open turns of one attempt, in all its tasks and threads; also the attempt's locator."""

    def __init__(self, recorder: Recorder) -> None:
        """Make an empty table; `recorder` is not used."""
        del recorder
        self._turns: dict[str, Turn] = {}
        """By the id of the turn's span."""

    def __contains__(self, span_id: str) -> bool:
        return span_id in self._turns

    def __call__(self, opened: Scope | None) -> Scope | None:
        """Return the innermost scope: that of the agent handling a message, or `opened`."""
        handling = handling_here()
        return (handling.scope(opened) if handling is not None else None) or opened

    def here(self) -> Turn | None:
        """Return the turn of the current agent; None in a tool or for another framework's agent."""
        scope = current_scope()
        while scope is not None and scope.kind in ("call", "operation"):
            scope = scope.parent
        return self._turns.get(scope.span_id) if scope is not None else None

    def enter(self, span: SpanScope, turn: Turn) -> None:
        """Add a turn; it is removed when its span ends."""
        self._turns[span.span_id] = turn
        span.on_end = lambda: self._turns.pop(span.span_id, None)


TURNS: Final = Tables(FRAMEWORK, Turns)


class Handling(Watcher):
    """The handling of one message by a core agent.

    Most messages cause no model call, so the agent's span begins with its first request.
    """

    def __init__(self, context: AttemptContext, agent: Any) -> None:
        """Make this the current handling.

        Args:
            context: The running attempt.
            agent: The agent that handles the message.
        """
        super().__init__()
        self._context = context
        self._agent = agent
        self._around = scope_around(FRAMEWORK)
        self._before = _HANDLING.get()
        _HANDLING.set(self)

    def scope(self, opened: Scope | None) -> Scope | None:
        """Return the agent's scope; None before its first request, or if `opened` is inside it."""
        return self._span if self._is_innermost(opened) else None

    def speak(self, opened: Scope | None) -> Scope | None:
        """Return the agent's scope as `scope` does, but open its span if there is none."""
        if not self._is_innermost(opened):
            return None
        if self._span is None:
            name = speaker_name(self._agent)
            trainable = not name.startswith(OWNED_PREFIX)
            start = SpanStart(SpanKind.AGENT, name, agent=name, new_run=True, trainable=trainable)
            self._span = TRACER.open(self._context.recorder, start, parent=self._around)
        return self._span

    def belongs_to(self, context: AttemptContext) -> bool:
        """Return whether the message is handled in this attempt."""
        return self._context is context

    def _is_innermost(self, opened: Scope | None) -> bool:
        outer = self._around
        while outer is not None and outer is not opened:
            outer = outer.parent
        return outer is opened

    def _end(self, error: BaseException | None) -> None:
        _HANDLING.set(self._before)
        super()._end(error)


def speaker_name(agent: Any) -> str:
    """Return the type under which a core agent is registered, without the id that teams append."""
    if isinstance(agent, SelectorGroupChatManager):
        return SELECTOR
    if isinstance(agent, BaseGroupChatManager):
        return _MANAGER
    return agent.id.type.removesuffix(f"_{agent.id.key}")


def handling_here() -> Handling | None:
    """Return the current handling of a message; None if there is none in this attempt."""
    handling, context = _HANDLING.get(), active()
    if handling is None or context is None or not handling.belongs_to(context):
        return None
    return handling


def speaking_here() -> Scope | None:
    """Return the scope of the agent that handles a message and is about to call a model.

    None if no message is handled, or if another scope is inside the handling.
    """
    handling = handling_here()
    return handling.speak(scope_around(FRAMEWORK)) if handling is not None else None
