"""`PromptBudget` as the framework's own kind of thing: a middleware that cuts what is formatted."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentscope.middleware import MiddlewareBase

from agl_core.budget import PromptBudget


class PromptBudgetMiddleware(MiddlewareBase):
    """Cuts each prompt of an agent to a number of tokens; see `agl_core.PromptBudget`.

    What one call sends is cut; the agent's context stays as it is, so that every call is cut from the whole history
    from the whole. It cuts what the formatter of the agent's model has made, which has to be
    messages in OpenAI's form. Outside a rollout it does nothing, unless the budget has a count of
    its own.
    """

    def __init__(self, budget: PromptBudget | int | None = None) -> None:
        """Set a budget.

        Args:
            budget: A `PromptBudget`, or its tokens; when None, ``prompt_budgets`` of the run has
                them for the agent.
        """
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)

    async def on_model_call(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]
    ) -> Any:
        """Ask the model with a formatter that cuts; the framework's signature."""
        del agent
        model = copy.copy(input_kwargs["current_model"])
        model.formatter = _Fitting(model.formatter, self.budget, input_kwargs.get("tools") or ())
        return await next_handler(**{**input_kwargs, "current_model": model})


class _Fitting:
    """A formatter whose prompts fit; it keeps the fields of the given one."""

    def __init__(
        self, formatter: Any, budget: PromptBudget, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        self._formatter = formatter
        self._budget = budget
        self._tools = tools

    async def format(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Format as the given one does, then cut."""
        messages = await self._formatter.format(*args, **kwargs)
        return [dict(each) for each in await self._budget.afit(messages, tools=self._tools)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._formatter, name)
