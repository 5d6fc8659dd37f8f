"""Record a compaction strategy's model calls under a reserved name, not as the agent's calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from agent_framework import ChatContext

from agl_agent_framework._budget import ASKED, Asked, PromptBudgetStrategy
from agl_core.tracing import active, run_as
from agl_core.types import Scope

SUMMARIZER: Final = "@summarizer"
"""Agent of the calls that summarize an agent's history; never trained."""
_STRATEGY: Final = "compaction_strategy"


def speaking_for_itself(context: ChatContext, around: Scope | None, agent: str | None) -> None:
    """Wrap the compaction strategy of this call, so that its own calls belong to `SUMMARIZER`.

    As in the framework, a strategy given for the call has priority over the client's.

    Args:
        context: The call's context.
        around: The scope outside the call; its span is the parent of the summarizer's requests.
        agent: Name of the agent whose history is compacted.
    """
    strategy = context.kwargs.get(_STRATEGY) or getattr(context.client, _STRATEGY, None)
    if strategy is not None:
        asked = Asked.of(agent, context.options or {})
        context.kwargs[_STRATEGY] = _Compaction(strategy, around, asked)


class _Compaction:
    """A strategy that runs in its own scope, with the name and attributes of the given strategy."""

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
                return await self._strategy(messages)  # it calls no model
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
