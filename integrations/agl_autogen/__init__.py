"""AutoGen integration: records agents without changes to user code, and offers a prompt budget.

Importing this package does not need AutoGen; using `PromptBudgetContext` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_autogen._budget import PromptBudgetContext

__all__ = ["PromptBudgetContext"]

_PLACES = {"PromptBudgetContext": "_budget"}


def __getattr__(name: str) -> Any:
    from agl_core.plugins import Framework, offered  # noqa: PLC0415

    framework = Framework("autogen_core", "autogen-core", "autogen", "autogen")
    return offered(name, __name__, _PLACES, framework)
