"""The OpenAI Agents SDK for agl-core: who speaks, and a budget for what is asked.

Importing this package needs no framework; using `AglTracingProcessor` or `PromptBudgetFilter` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_openai_agents._budget import PromptBudgetFilter
    from agl_openai_agents._processor import AglTracingProcessor

__all__ = ["AglTracingProcessor", "PromptBudgetFilter"]

_PLACES = {
    "AglTracingProcessor": "agl_openai_agents._processor",
    "PromptBudgetFilter": "agl_openai_agents._budget",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        return getattr(import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "agents":
            raise
        raise MissingExtraError(
            "openai_agents", needs="openai-agents", extra="openai-agents"
        ) from error
