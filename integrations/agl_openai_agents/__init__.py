"""The OpenAI Agents SDK for agl-core: one tracing processor that tells which agent speaks.

Importing this package needs no framework; using `AglTracingProcessor` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_openai_agents._processor import AglTracingProcessor

__all__ = ["AglTracingProcessor"]


def __getattr__(name: str) -> Any:
    if name != "AglTracingProcessor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_core.errors import MissingExtraError  # noqa: PLC0415

    try:
        from agl_openai_agents._processor import AglTracingProcessor  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "agents":
            raise
        raise MissingExtraError(
            "openai_agents", needs="openai-agents", extra="openai-agents"
        ) from error
    return AglTracingProcessor
