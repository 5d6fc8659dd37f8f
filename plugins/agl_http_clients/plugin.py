"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "http_clients",
        "agl_http_clients._integration:HttpClients",
        summary="model requests over urllib3, requests, urllib.request, aiohttp and WebSockets: "
        "refused or counted",
        required=True,
    )
