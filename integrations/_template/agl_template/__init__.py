"""Template for agl-core: one listener that tells which agent speaks.

Importing this package needs no framework; using `AglTemplateListener` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_template._handler import AglTemplateListener

__all__ = ["AglTemplateListener"]


def __getattr__(name: str) -> Any:
    if name != "AglTemplateListener":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        from agl_template._handler import AglTemplateListener  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError("template", needs=str(error.name), extra="template") from error
    return AglTemplateListener
