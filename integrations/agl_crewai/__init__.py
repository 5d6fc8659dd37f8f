"""CrewAI for agl-core: who speaks, and a budget for what is asked.

Importing this package needs no framework; using `AglEventListener` or `PromptBudgetHook` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_crewai._budget import PromptBudgetHook
    from agl_crewai._listener import AglEventListener

__all__ = ["AglEventListener", "PromptBudgetHook"]

_PLACES = {
    "AglEventListener": "agl_crewai._listener",
    "PromptBudgetHook": "agl_crewai._budget",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        return getattr(import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "crewai":
            raise
        raise MissingExtraError("crewai", needs="crewai", extra="crewai") from error
