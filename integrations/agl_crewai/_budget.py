"""A prompt budget as CrewAI's own kind of thing: a hook before each model call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from crewai.hooks.dispatch import HookAborted
from crewai.hooks.llm_hooks import LLMCallHookContext

from agl_core import PromptBudget
from agl_core.errors import AglError, ContextOverflowError
from agl_crewai._overflow import PromptOverflowError


class PromptBudgetHook:
    """Cuts what agents ask their models, as `agl_core.PromptBudget` does.

    ::

        register_before_llm_call_hook(PromptBudgetHook(3000))

    CrewAI gives an agent the hooks there are when its executor is made, so register it before the
    first run. It hands the agent's own history to hooks, so what is cut stays cut. Outside a rollout
    the hook does nothing, unless the budget has a count of its own.
    """

    def __init__(self, budget: PromptBudget | int | None = None) -> None:
        """Set a budget for every model call.

        Args:
            budget: A `PromptBudget`, or its tokens; when None, ``prompt_budgets`` of the run has
                them for each agent.
        """
        self.budget = budget if isinstance(budget, PromptBudget) else PromptBudget(budget)

    def __call__(self, context: LLMCallHookContext) -> None:
        """CrewAI's signature.

        Raises:
            PromptOverflowError: system messages, tools and the last turn alone exceed the budget.
            HookAborted: tokens cannot be counted, no budget is known, or the gateway does not answer. CrewAI
                would pass over any other exception and send the prompt as it is.
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
