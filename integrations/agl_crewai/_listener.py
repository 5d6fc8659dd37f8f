"""A listener that gets CrewAI's events when and where they are emitted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import crewai
from crewai.events.base_event_listener import BaseEventListener
from crewai.events.event_bus import CrewAIEventsBus
from crewai.utilities.i18n import I18N_DEFAULT

from agl_core.errors import ConfigError
from agl_core.tracing import Patch, active, guarded
from agl_crewai._entries import EntryPoints
from agl_crewai._events import Beginning, beginning, closing, refused
from agl_crewai._frames import begin, end, note, refuse, seen
from agl_crewai._names import DEFERS_RESULTS, FRAMEWORK, RESPECTS_WINDOW
from agl_crewai._overflow import OverflowGuard

_log = logging.getLogger(__name__)

REWRITING_FIX: Final = "Agent(..., respect_context_window=False, use_better_compaction=False)"


class AglEventListener(BaseEventListener):
    """Records the crews, flows, agents, tools and calls of a CrewAI program.

    Each model request gets the name of its agent. Like every CrewAI listener, it listens from its
    construction. Outside a rollout it does nothing, so production code may keep it; several
    listeners record each event once.

    The bus runs handlers in a pool, in any order, with copies of the context, and some after the
    agent has continued: too late to name the agent of a request. This listener instead gets each
    event in the emitting task or thread, before any handler.
    """

    def __init__(self) -> None:
        """Start listening.

        Raises:
            ConfigError: a function that is wrapped differs from that of the supported versions.
        """
        self._patch: Patch | None = None
        self._guard = OverflowGuard()
        self._entries = EntryPoints()
        self._warned: set[str] = set()
        super().__init__()

    def setup_listeners(self, crewai_event_bus: CrewAIEventsBus) -> None:
        """Wrap the bus and the entry points; CrewAI's base class calls this."""
        self._patch = Patch(
            crewai,
            type(crewai_event_bus),
            "emit",
            self._wrap,
            parameters=("source", "event"),
        )
        self._guard.install()
        try:
            self._entries.install()
        except ConfigError:
            self._guard.remove()
            raise
        self._patch.install()

    def close(self) -> None:
        """Stop listening."""
        if self._patch is not None:
            self._patch.remove()
        self._patch = None
        self._entries.remove()
        self._guard.remove()

    def _wrap(self, original: Callable[..., Any], live: Callable[[], bool]) -> Callable[..., Any]:
        def emit(bus: Any, source: Any, event: Any) -> Any:
            if live():
                self._observe(source, event)
            return original(bus, source, event)

        return emit

    @guarded(FRAMEWORK)
    def _observe(self, source: Any, event: Any) -> None:
        context = active()
        if context is None or seen(event.event_id):
            return
        begun = beginning(source, event)
        if begun is not None:
            begin(context, event.type, begun, summarizes=_summarizes(event))
            self._warn(begun)
            return
        ended = closing(event)
        if ended is not None:
            end(context, ended)
            note(ended)
            return
        unread = refused(event)
        if unread is not None:
            refuse(context, unread, event.failure)

    def _warn(self, begun: Beginning) -> None:
        """Log once for each agent that CrewAI may rewrite its prompts."""
        rewriting = [
            name.partition(".")[2]
            for name in (RESPECTS_WINDOW, DEFERS_RESULTS)
            if (begun.start.attributes or {}).get(name)
        ]
        if rewriting and begun.start.name not in self._warned:
            self._warned.add(begun.start.name)
            _log.warning(
                "CrewAI may rewrite the prompts of agent %r (%s): train it with %s",
                begun.start.name,
                ", ".join(rewriting),
                REWRITING_FIX,
            )


def _summarizes(event: Any) -> bool:
    """Return whether a model call asks for CrewAI's summary of a history."""
    if event.type != "llm_call_started":
        return False
    messages: Any = event.messages
    if not messages or isinstance(messages, str):
        return False
    prompt = I18N_DEFAULT.slice("summarizer_system_message")
    return messages[0].get("content") == prompt
