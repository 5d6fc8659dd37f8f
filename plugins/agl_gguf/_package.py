"""The package that writes GGUF."""

from __future__ import annotations

from importlib.util import find_spec

from agl_core.errors import MissingExtraError


def require_gguf() -> None:
    """Raise MissingExtraError unless the package that writes GGUF is installed."""
    if find_spec("gguf") is None:
        raise MissingExtraError("gguf", needs="gguf>=0.10", extra="gguf")
