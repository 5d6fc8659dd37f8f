"""AutoGen for agl-core: who speaks needs nothing in the user's code, a budget for prompts does.

Importing this package needs no framework; using `PromptBudgetContext` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_autogen._budget import PromptBudgetContext

__all__ = ["PromptBudgetContext"]


def __getattr__(name: str) -> Any:
    if name != "PromptBudgetContext":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        from agl_autogen._budget import PromptBudgetContext  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "autogen_core":
            raise
        raise MissingExtraError("autogen", needs="autogen-core", extra="autogen") from error
    return PromptBudgetContext
