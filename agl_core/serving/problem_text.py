"""Error bodies in one line."""

from __future__ import annotations

from typing import Any


def error_text(payload: Any) -> str:
    """One line of an error body, whichever of the usual forms it has."""
    if isinstance(payload, dict):
        error: Any = payload.get("error", payload)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        if isinstance(error, dict):
            code: Any = error.get("code") or error.get("type") or ""  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            text: Any = error.get("message", error)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            return f"{code}: {text}" if code else str(text)  # pyright: ignore[reportUnknownArgumentType]
        return str(error)  # pyright: ignore[reportUnknownArgumentType]
    return str(payload)
