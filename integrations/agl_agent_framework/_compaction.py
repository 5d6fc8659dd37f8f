"""Compaction in a model call: what it asks a model is not the agent's call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from agent_framework import ChatContext

from agl_core.tracing import close_scope, open_scope
from agl_core.types import Scope
from agl_core.types.ids import new_id

SUMMARIZER: Final = "@summarizer"
"""Asks the model for summaries of an agent's history; belongs to the framework, never trained."""
_STRATEGY: Final = "compaction_strategy"


def speaking_for_itself(context: ChatContext, around: Scope | None) -> None:
    """Let what compacts the history of this call speak as `SUMMARIZER`.

    The strategy given for the call counts, else the client's, as in the framework.

    Args:
        context: Of the call.
        around: The scope outside the call; the summarizer's requests hang under its span.
    """
    strategy = context.kwargs.get(_STRATEGY) or getattr(context.client, _STRATEGY, None)
    if strategy is not None:
        context.kwargs[_STRATEGY] = _Compaction(strategy, around.span_id if around else "")


class _Compaction:
    """A strategy in a scope of its own; it keeps the name and the fields of the given one."""

    def __init__(self, strategy: Callable[[list[Any]], Awaitable[bool]], parent_span: str) -> None:
        self._strategy = strategy
        self._parent_span = parent_span
        self.__name__: str = getattr(strategy, "__name__", type(strategy).__name__)

    async def __call__(self, messages: list[Any]) -> bool:
        scope = open_scope(
            "agent",
            span_id=self._parent_span,
            agent=SUMMARIZER,
            agent_run_id=new_id("span"),
            trainable=False,
        )
        try:
            return await self._strategy(messages)
        finally:
            close_scope(scope)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)
