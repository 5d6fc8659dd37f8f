"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_dialects(register: Register) -> None:
    register("POST /completions", "agl_completions._request:read", summary="legacy completions")


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "POST /embeddings",
        "agl_completions._embeddings:Embeddings",
        summary="embeddings of another server, passed through",
    )
