"""LangChain and LangGraph for agl-core: one callback handler that tells which agent speaks.

Importing this package needs no framework; using `AglCallbackHandler` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_langchain._handler import AglCallbackHandler

__all__ = ["AglCallbackHandler"]


def __getattr__(name: str) -> Any:
    if name != "AglCallbackHandler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        from agl_langchain._handler import AglCallbackHandler  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "langchain_core":
            raise
        raise MissingExtraError("langchain", needs="langchain-core", extra="langchain") from error
    return AglCallbackHandler
