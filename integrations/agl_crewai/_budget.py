"""A prompt budget as a CrewAI hook that runs before each model call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from agl_budget import PromptBudget
from crewai.hooks.dispatch import HookAborted
from crewai.hooks.llm_hooks import LLMCallHookContext

from agl_core.errors import AglError, ContextOverflowError
from agl_crewai._overflow import PromptOverflowError


class PromptBudgetHook:
    """Cuts the agents' prompts as `agl_budget.PromptBudget` does.

    ::

        register_before_llm_call_hook(PromptBudgetHook(3000))

    Register it before the first run: an agent gets the hooks that are registered when CrewAI makes
    its executor. Hooks get the agent's history itself, not a copy, so cut messages are also missing
    from later prompts. Outside a rollout the hook does nothing, unless the budget has its own
    ``count``.
    """

    def __init__(self, budget: PromptBudget | int | None = None) -> None:
        """Set a budget for every model call.

        Args:
            budget: A `PromptBudget`, or a number of tokens. When None, the agent's number in the
                run's ``prompt_budgets``, else three quarters of the model's context.
        """
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)

    def __call__(self, context: LLMCallHookContext) -> None:
        """Cut the messages of one model call in place.

        Raises:
            PromptOverflowError: system messages, tools and the last turn alone exceed the budget.
            HookAborted: tokens cannot be counted, no budget is known, or the gateway does not
                answer. CrewAI ignores any other exception and sends the prompt uncut.
        """
        messages = cast("list[Any]", context.messages)
        tools: Sequence[Any] = getattr(context.executor, "_openai_tools", None) or ()
        try:
            fitted = self.budget.plan(messages, tools=tools)
        except ContextOverflowError as error:
            raise PromptOverflowError(str(error)) from error
        except AglError as error:
            raise HookAborted(str(error), source="PromptBudgetHook") from error
        if fitted.cut:
            messages[:] = fitted.messages
