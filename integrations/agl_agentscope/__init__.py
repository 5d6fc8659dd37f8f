"""AgentScope integration: records agents by name, cuts prompts and splits thinking from text.

Importing this package does not need AgentScope; using its classes does.
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

_PLACES = {
    "AglMiddleware": "_v2.middleware",
    "PromptBudgetFormatter": "_v1.budget",
    "PromptBudgetMiddleware": "_v2.budget",
    "ThinkTagsMiddleware": "_v2.thinking",
    "ThinkTagsModel": "_v1.thinking",
}


def __getattr__(name: str) -> Any:
    from agl_agentscope._versions import EXTRAS, installed, major  # noqa: PLC0415
    from agl_core.errors import MissingExtraError  # noqa: PLC0415
    from agl_core.plugins import Framework, offered  # noqa: PLC0415

    needed = 1 if _PLACES.get(name, "").startswith("_v1.") else 2
    needs, extra = f"agentscope {needed}", EXTRAS[needed]
    if name in _PLACES and major(installed()) != needed:
        raise MissingExtraError("agentscope", needs=needs, extra=extra)
    return offered(name, __name__, _PLACES, Framework("agentscope", needs, "agentscope", extra))
