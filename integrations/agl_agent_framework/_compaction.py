"""Compaction in a model call: what it asks a model is not the agent's call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from agent_framework import ChatContext

from agl_agent_framework._budget import ASKED, Asked, PromptBudgetStrategy
from agl_core.tracing import active, run_as
from agl_core.types import Scope

SUMMARIZER: Final = "@summarizer"
"""Asks the model for summaries of an agent's history; belongs to the framework, never trained."""
_STRATEGY: Final = "compaction_strategy"


def speaking_for_itself(context: ChatContext, around: Scope | None, agent: str | None) -> None:
    """Let what compacts the history of this call speak as `SUMMARIZER`.

    The strategy given for the call counts, else the client's, as in the framework.

    Args:
        context: Of the call.
        around: The scope outside the call; the summarizer's requests hang under its span.
        agent: Whose history it is.
    """
    strategy = context.kwargs.get(_STRATEGY) or getattr(context.client, _STRATEGY, None)
    if strategy is not None:
        asked = Asked.of(agent, context.options or {})
        context.kwargs[_STRATEGY] = _Compaction(strategy, around, asked)


class _Compaction:
    """A strategy in a scope of its own; it keeps the name and the fields of the given one."""

    def __init__(
        self, strategy: Callable[[list[Any]], Awaitable[bool]], around: Scope | None, asked: Asked
    ) -> None:
        self._strategy = strategy
        self._around = around
        self._asked = asked
        self.__name__: str = getattr(strategy, "__name__", type(strategy).__name__)

    async def __call__(self, messages: list[Any]) -> bool:
        before = ASKED.get()
        ASKED.set(self._asked)
        try:
            if isinstance(self._strategy, PromptBudgetStrategy):
                return await self._strategy(messages)  # says what it cuts, and asks no model
            context = active()
            if context is None:
                return await self._strategy(messages)
            return await run_as(
                context.recorder, SUMMARIZER, lambda: self._strategy(messages), parent=self._around
            )
        finally:
            ASKED.set(before)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)
