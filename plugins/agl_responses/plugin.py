"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_dialects(register: Register) -> None:
    register("POST /responses", "agl_responses._request:read", summary="OpenAI Responses")
