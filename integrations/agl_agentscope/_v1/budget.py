"""`PromptBudget` as the framework's own kind of thing: a formatter whose prompts fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentscope.formatter import FormatterBase
from agentscope.tool import Toolkit

from agl_core.budget import PromptBudget


class PromptBudgetFormatter(FormatterBase):
    """Cuts what a formatter has made to a number of tokens; see `agl_core.PromptBudget`.

    What one call sends is cut; the agent's memory stays as it is, so that every call is cut from the whole history
    from the whole. The formatter has to make messages in OpenAI's form. Outside a rollout nothing
    is cut, unless the budget has a count of its own.
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
            formatter: Makes the prompt that is cut.
            budget: A `PromptBudget`, or its tokens; when None, ``prompt_budgets`` of the run has
                them for the agent.
            toolkit: The agent's, whose tools are part of each prompt and count as well.
        """
        self.formatter = formatter
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)
        self.toolkit = toolkit

    async def format(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        """Format as the given one does, then cut."""
        messages = await self.formatter.format(*args, **kwargs)
        toolkit: Any = self.toolkit
        tools: Sequence[Mapping[str, Any]] = () if toolkit is None else toolkit.get_json_schemas()
        return [dict(each) for each in await self.budget.afit(messages, tools=tools)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.formatter, name)
