"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_dialects(register: Register) -> None:
    register("POST /messages", "agl_anthropic._request:read", summary="Anthropic Messages")


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "POST /messages/count_tokens",
        "agl_anthropic._counting:MessageCounting",
        summary="tokens of an Anthropic Messages request",
    )
