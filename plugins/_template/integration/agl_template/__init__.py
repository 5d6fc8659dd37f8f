"""Template for agl-core: one listener that records which agent calls models.

Importing this package does not need the framework; using `AglTemplateListener` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_template._handler import AglTemplateListener

__all__ = ["AglTemplateListener"]

_PLACES = {"AglTemplateListener": "_handler"}


def __getattr__(name: str) -> Any:
    from agl_core.plugins import Framework, offered  # noqa: PLC0415

    framework = Framework(module="httpx", needs="httpx", plugin="template", extra="template")
    return offered(name, __name__, _PLACES, framework)
