"""Agents of AutoGen's core: whoever handles a message, and asks a model while doing so, speaks.

Most messages make nobody speak, so span and scope of an agent begin with its first request.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from autogen_agentchat.teams._group_chat._base_group_chat_manager import BaseGroupChatManager
from autogen_agentchat.teams._group_chat._selector_group_chat import SelectorGroupChatManager

from agl_autogen._work import FRAMEWORK, Watcher, start_span
from agl_core.tracing import AttemptContext, active, scope_around
from agl_core.types import Scope

OWNED_PREFIX: Final = "@"
"""Agents whose name starts like this belong to the framework and are never trained."""
SELECTOR: Final = OWNED_PREFIX + "selector"
_MANAGER: Final = OWNED_PREFIX + "manager"
_HANDLING: ContextVar[Handling | None] = ContextVar("agl_autogen_handling", default=None)


class Handling(Watcher):
    """One message that a core agent handles."""

    def __init__(self, context: AttemptContext, agent: Any) -> None:
        self._context = context
        self._agent = agent
        self._around = scope_around(FRAMEWORK)
        self._before = _HANDLING.get()
        self._scope: Scope | None = None

    def scope(self, opened: Scope | None) -> Scope | None:
        """The agent's scope, unless it has not spoken or `opened` was opened in the handling."""
        return self._scope if self._is_innermost(opened) else None

    def speak(self, opened: Scope | None) -> Scope | None:
        """As `scope`, for an agent that is about to ask a model."""
        if not self._is_innermost(opened):
            return None
        if self._scope is None:
            self._scope = self._begin()
        return self._scope

    def belongs_to(self, context: AttemptContext) -> bool:
        return self._context is context

    def _is_innermost(self, opened: Scope | None) -> bool:
        outer = self._around
        while outer is not None and outer is not opened:
            outer = outer.parent
        return outer is opened

    def _begin(self) -> Scope:
        name, around = speaker_name(self._agent), self._around
        span_id = start_span(
            self._context.recorder,
            "agent",
            name,
            # An empty id hangs the span under the attempt.
            parent_id=around.span_id if around is not None else "",
        )
        trainable = around is None or around.kind == "tool" or around.trainable
        return Scope(
            kind="agent",
            span_id=span_id,
            agent=name,
            agent_run_id=span_id,
            trainable=trainable and not name.startswith(OWNED_PREFIX),
            parent=around,
        )

    def _saw(self, item: Any) -> None:
        del item

    def _end(self, error: BaseException | None) -> None:
        _HANDLING.set(self._before)
        if self._scope is not None:
            self._scope.closed = True
            self._context.recorder.end_with(self._scope.span_id, error)


def speaker_name(agent: Any) -> str:
    """The type that a core agent is registered under; teams add their id to it."""
    if isinstance(agent, SelectorGroupChatManager):
        return SELECTOR
    if isinstance(agent, BaseGroupChatManager):
        return _MANAGER
    return agent.id.type.removesuffix(f"_{agent.id.key}")


def begin(context: AttemptContext, agent: Any) -> Handling:
    """A runtime hands a message to `agent`."""
    handling = Handling(context, agent)
    _HANDLING.set(handling)
    return handling


def here() -> Handling | None:
    """The handling that this code belongs to, if it is one of this attempt."""
    handling, context = _HANDLING.get(), active()
    if handling is None or context is None or not handling.belongs_to(context):
        return None
    return handling


def speaking_here() -> Scope | None:
    """Who handles a message here and is about to ask a model; None if a scope inside says who."""
    handling = here()
    return handling.speak(scope_around(FRAMEWORK)) if handling is not None else None
