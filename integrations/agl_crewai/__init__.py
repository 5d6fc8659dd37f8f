"""CrewAI for agl-core: one event listener that tells which agent speaks.

Importing this package needs no framework; using `AglEventListener` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_crewai._listener import AglEventListener

__all__ = ["AglEventListener"]


def __getattr__(name: str) -> Any:
    if name != "AglEventListener":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        from agl_crewai._listener import AglEventListener  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "crewai":
            raise
        raise MissingExtraError("crewai", needs="crewai", extra="crewai") from error
    return AglEventListener
