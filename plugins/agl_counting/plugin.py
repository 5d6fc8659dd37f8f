"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "POST /tokenize",
        "agl_counting._count:TokenCounting",
        summary="count the tokens of a prompt",
    )
