"""Microsoft Agent Framework integration: a middleware that records agents, and a prompt budget.

Importing this package does not need the framework; using its classes does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_agent_framework._budget import PromptBudgetStrategy
    from agl_agent_framework._middleware import AglMiddleware

__all__ = ["AglMiddleware", "PromptBudgetStrategy"]

_PLACES = {"AglMiddleware": "_middleware", "PromptBudgetStrategy": "_budget"}


def __getattr__(name: str) -> Any:
    from agl_core.plugins import Framework, offered  # noqa: PLC0415

    framework = Framework(
        "agent_framework", "agent-framework-core", "agent_framework", "agent-framework"
    )
    return offered(name, __name__, _PLACES, framework)
