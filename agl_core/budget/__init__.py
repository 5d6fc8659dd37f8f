"""Prompt budgets: cut the middle of a history to a number of tokens of the model's chat template.

Reading order: `prompt_budget` (the class that integrations and agents use, and counting at the
gateway), `plan` (the cuts that are tried).
"""

from agl_core.budget.plan import FittedPrompt
from agl_core.budget.prompt_budget import PromptBudget

__all__ = ["FittedPrompt", "PromptBudget"]
