"""LangChain and LangGraph for agl-core: who speaks, and a budget for what is asked.

Importing this package needs no framework; using `AglCallbackHandler` or `PromptBudgetMiddleware`
does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_langchain._budget import PromptBudgetMiddleware
    from agl_langchain._handler import AglCallbackHandler

__all__ = ["AglCallbackHandler", "PromptBudgetMiddleware"]

_PLACES = {
    "AglCallbackHandler": "agl_langchain._handler",
    "PromptBudgetMiddleware": "agl_langchain._budget",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415

    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    module = _PLACES[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "langchain_core":
            raise MissingExtraError(
                "langchain", needs="langchain-core", extra="langchain"
            ) from error
        if missing == "langchain":
            raise MissingExtraError(name, needs="langchain") from error
        raise
