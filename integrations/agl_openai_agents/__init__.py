"""OpenAI Agents SDK integration: the agent of each model call, and a prompt budget.

Importing this package does not need the SDK; using `AglTracingProcessor` or `PromptBudgetFilter`
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_openai_agents._budget import PromptBudgetFilter
    from agl_openai_agents._processor import AglTracingProcessor

__all__ = ["AglTracingProcessor", "PromptBudgetFilter"]

_PLACES = {"AglTracingProcessor": "_processor", "PromptBudgetFilter": "_budget"}


def __getattr__(name: str) -> Any:
    from agl_core.plugins import Framework, offered  # noqa: PLC0415

    framework = Framework("agents", "openai-agents", "openai_agents", "openai-agents")
    return offered(name, __name__, _PLACES, framework)
