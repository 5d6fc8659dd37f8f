"""A prompt budget as a formatter of AgentScope 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentscope.formatter import FormatterBase
from agentscope.tool import Toolkit
from agl_budget import PromptBudget


class PromptBudgetFormatter(FormatterBase):
    """Cuts another formatter's prompts to a number of tokens; see `agl_budget.PromptBudget`.

    It changes one request and not the agent's memory, so each call is cut from the whole history.
    The other formatter must return messages in OpenAI's form. Outside a rollout nothing is cut,
    unless the budget has its own ``count``.
    """

    def __init__(
        self,
        formatter: FormatterBase,
        budget: PromptBudget | int | None = None,
        *,
        toolkit: Toolkit | None = None,
    ) -> None:
        """Set a budget.

        Args:
            formatter: The formatter whose prompts are cut.
            budget: A `PromptBudget`, or a number of tokens. When None, the agent's number in the
                run's ``prompt_budgets``, else three quarters of the model's context.
            toolkit: The agent's toolkit, whose tools are part of each prompt and count as well.
        """
        self.formatter = formatter
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)
        self.toolkit = toolkit

    async def format(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Call the given formatter and cut its messages."""
        messages = await self.formatter.format(*args, **kwargs)
        toolkit: Any = self.toolkit
        tools: Sequence[Mapping[str, Any]] = () if toolkit is None else toolkit.get_json_schemas()
        return [dict(each) for each in await self.budget.afit(messages, tools=tools)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.formatter, name)
