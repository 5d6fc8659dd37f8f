"""AgentScope for agl-core: agents by their name, thinking told apart from text.

Importing this package needs no framework; using what it offers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_agentscope._v2.budget import PromptBudgetMiddleware
    from agl_agentscope._v2.middleware import AglMiddleware
    from agl_agentscope._v2.thinking import ThinkTagsMiddleware

__all__ = ["AglMiddleware", "PromptBudgetMiddleware", "ThinkTagsMiddleware"]

_MODULES = {
    "AglMiddleware": "_v2.middleware",
    "PromptBudgetMiddleware": "_v2.budget",
    "ThinkTagsMiddleware": "_v2.thinking",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "agentscope":
            raise
        raise MissingExtraError("agentscope", needs="agentscope", extra="agentscope") from error
    return getattr(module, name)
