"""Which agent of AutoGen speaks: in whose turn, or in whose handling of a message, code runs."""

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
"""Agents whose name starts like this belong to the framework and are never trained."""
SELECTOR: Final = OWNED_PREFIX + "selector"
_MANAGER: Final = OWNED_PREFIX + "manager"
_HANDLING: ContextVar[Handling | None] = ContextVar("agl_autogen_handling", default=None)


class Turn(Protocol):
    """The turn of an agent of agentchat."""

    agent: Any

    def ran(self, tool_call_id: str) -> None:
        """A tool recorded this call itself."""
        ...

    def note(self, item: Any) -> None:
        """Record what an event, a message or a response says."""
        ...


class Turns:
    """The open turns of one attempt, which may run in several tasks and threads; its locator."""

    def __init__(self, recorder: Recorder) -> None:
        """For one attempt."""
        del recorder
        self._turns: dict[str, Turn] = {}
        """By the id of their span."""

    def __contains__(self, span_id: str) -> bool:
        return span_id in self._turns

    def __call__(self, opened: Scope | None) -> Scope | None:
        """From the scope opened here to the innermost one, with the agent that handles a message."""
        handling = handling_here()
        return (handling.scope(opened) if handling is not None else None) or opened

    def here(self) -> Turn | None:
        """The turn whose agent speaks here; None in a tool, and for agents of other frameworks."""
        scope = current_scope()
        while scope is not None and scope.kind in ("call", "operation"):
            scope = scope.parent
        return self._turns.get(scope.span_id) if scope is not None else None

    def enter(self, span: SpanScope, turn: Turn) -> None:
        """Begin a turn, until its span ends."""
        self._turns[span.span_id] = turn
        span.on_end = lambda: self._turns.pop(span.span_id, None)


TURNS: Final = Tables(FRAMEWORK, Turns)


class Handling(Watcher):
    """One message that a core agent handles.

    The agent speaks if it asks a model while doing so. Most messages make no agent speak, so its
    span begins with its first request.
    """

    def __init__(self, context: AttemptContext, agent: Any) -> None:
        """A runtime hands a message to `agent`."""
        super().__init__()
        self._context = context
        self._agent = agent
        self._around = scope_around(FRAMEWORK)
        self._before = _HANDLING.get()
        _HANDLING.set(self)

    def scope(self, opened: Scope | None) -> Scope | None:
        """The agent's scope, unless it has not spoken or `opened` was opened in the handling."""
        return self._span if self._is_innermost(opened) else None

    def speak(self, opened: Scope | None) -> Scope | None:
        """As `scope`, for an agent that is about to ask a model."""
        if not self._is_innermost(opened):
            return None
        if self._span is None:
            name = speaker_name(self._agent)
            trainable = not name.startswith(OWNED_PREFIX)
            start = SpanStart(SpanKind.AGENT, name, agent=name, new_run=True, trainable=trainable)
            self._span = TRACER.open(self._context.recorder, start, parent=self._around)
        return self._span

    def belongs_to(self, context: AttemptContext) -> bool:
        """Whether the message is handled in this attempt."""
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
    """The type that a core agent is registered under; teams add their id to it."""
    if isinstance(agent, SelectorGroupChatManager):
        return SELECTOR
    if isinstance(agent, BaseGroupChatManager):
        return _MANAGER
    return agent.id.type.removesuffix(f"_{agent.id.key}")


def handling_here() -> Handling | None:
    """The handling that this code belongs to, if it is one of this attempt."""
    handling, context = _HANDLING.get(), active()
    if handling is None or context is None or not handling.belongs_to(context):
        return None
    return handling


def speaking_here() -> Scope | None:
    """Who handles a message here and is about to ask a model; None if a scope inside says who."""
    handling = handling_here()
    return handling.speak(scope_around(FRAMEWORK)) if handling is not None else None
