"""Prompt budgets: cut the middle of a history to a number of tokens of the model's chat template.

A library for agents and integrations; it registers no hooks. Reading order: `_prompt_budget` (the
class, and counting at the gateway), `_plan` (the cuts that are tried).
"""

from agl_budget._plan import FittedPrompt, Message
from agl_budget._prompt_budget import CountTokens, PromptBudget, Tool

__all__ = ["CountTokens", "FittedPrompt", "Message", "PromptBudget", "Tool"]
