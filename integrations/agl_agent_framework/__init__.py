"""Microsoft Agent Framework for agl-core: one middleware that tells which agent speaks.

Importing this package needs no framework; using what it offers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_agent_framework._budget import PromptBudgetStrategy
    from agl_agent_framework._middleware import AglMiddleware

__all__ = ["AglMiddleware", "PromptBudgetStrategy"]

_MODULES = {"AglMiddleware": "_middleware", "PromptBudgetStrategy": "_budget"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "agent_framework":
            raise
        raise MissingExtraError(
            "agent_framework", needs="agent-framework-core", extra="agent-framework"
        ) from error
    return getattr(module, name)
