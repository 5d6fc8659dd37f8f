"""CrewAI integration: the agent of each model call, and a prompt budget.

Importing this package does not need CrewAI; using `AglEventListener` or `PromptBudgetHook` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_crewai._budget import PromptBudgetHook
    from agl_crewai._listener import AglEventListener

__all__ = ["AglEventListener", "PromptBudgetHook"]

_PLACES = {"AglEventListener": "_listener", "PromptBudgetHook": "_budget"}


def __getattr__(name: str) -> Any:
    from agl_core.plugins import Framework, offered  # noqa: PLC0415

    framework = Framework("crewai", "crewai", "crewai", "crewai")
    return offered(name, __name__, _PLACES, framework)
