"""Microsoft Agent Framework for agl-core: one middleware that tells which agent speaks.

Importing this package needs no framework; using `AglMiddleware` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_agent_framework._middleware import AglMiddleware

__all__ = ["AglMiddleware"]


def __getattr__(name: str) -> Any:
    if name != "AglMiddleware":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        from agl_agent_framework._middleware import AglMiddleware  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "agent_framework":
            raise
        raise MissingExtraError(
            "agent_framework", needs="agent-framework-core", extra="agent-framework"
        ) from error
    return AglMiddleware
