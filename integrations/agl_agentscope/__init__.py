"""AgentScope for agl-core: agents by their name, thinking told apart from text.

Importing this package needs no framework; using what it offers does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_agentscope._v1.budget import PromptBudgetFormatter
    from agl_agentscope._v1.thinking import ThinkTagsModel
    from agl_agentscope._v2.budget import PromptBudgetMiddleware
    from agl_agentscope._v2.middleware import AglMiddleware
    from agl_agentscope._v2.thinking import ThinkTagsMiddleware

__all__ = [
    "AglMiddleware",
    "PromptBudgetFormatter",
    "PromptBudgetMiddleware",
    "ThinkTagsMiddleware",
    "ThinkTagsModel",
]

_MODULES = {
    "AglMiddleware": "_v2.middleware",
    "PromptBudgetFormatter": "_v1.budget",
    "PromptBudgetMiddleware": "_v2.budget",
    "ThinkTagsMiddleware": "_v2.thinking",
    "ThinkTagsModel": "_v1.thinking",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    from agl_agentscope._versions import EXTRAS, installed, major  # noqa: PLC0415
    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    needed = 1 if _MODULES[name].startswith("_v1.") else 2
    missing = MissingExtraError("agentscope", needs=f"agentscope {needed}", extra=EXTRAS[needed])
    if major(installed()) != needed:
        raise missing
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "agentscope":
            raise
        raise missing from error
    return getattr(module, name)
