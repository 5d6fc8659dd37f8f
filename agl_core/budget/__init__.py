"""Prompts that fit: the middle of a history cut by the tokens of the model's own chat template.

Reading order: `prompt_budget` (what integrations and agents use), `plan` (which cuts are tried),
`history` (what may leave a history), `texts` (how a text is cut), `gateway` (who counts).
"""

from agl_core.budget.plan import FittedPrompt
from agl_core.budget.prompt_budget import PromptBudget

__all__ = ["FittedPrompt", "PromptBudget"]
