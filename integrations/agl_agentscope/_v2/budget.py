"""A prompt budget as a middleware of AgentScope 2."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentscope.middleware import MiddlewareBase
from agl_budget import PromptBudget


class PromptBudgetMiddleware(MiddlewareBase):
    """Cuts each prompt of an agent to a number of tokens; see `agl_budget.PromptBudget`.

    It changes one request and not the agent's context, so each call is cut from the whole history.
    It cuts the messages of the model's formatter, which must be in OpenAI's form. Outside a rollout
    it does nothing, unless the budget has its own ``count``.
    """

    def __init__(self, budget: PromptBudget | int | None = None) -> None:
        """Set a budget.

        Args:
            budget: A `PromptBudget`, or a number of tokens. When None, the agent's number in the
                run's ``prompt_budgets``, else three quarters of the model's context.
        """
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)

    async def on_model_call(
        self, agent: Any, input_kwargs: dict[str, Any], next_handler: Callable[..., Any]
    ) -> Any:
        """Call the model with a formatter that cuts the prompt."""
        del agent
        model = copy.copy(input_kwargs["current_model"])
        model.formatter = _Fitting(model.formatter, self.budget, input_kwargs.get("tools") or ())
        return await next_handler(**{**input_kwargs, "current_model": model})


class _Fitting:
    """A formatter that cuts another formatter's prompts, with that formatter's attributes."""

    def __init__(
        self, formatter: Any, budget: PromptBudget, tools: Sequence[Mapping[str, Any]]
    ) -> None:
        self._formatter = formatter
        self._budget = budget
        self._tools = tools

    async def format(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Call the given formatter and cut its messages."""
        messages = await self._formatter.format(*args, **kwargs)
        return [dict(each) for each in await self._budget.afit(messages, tools=self._tools)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._formatter, name)
