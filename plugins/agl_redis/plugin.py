"""Hooks of this package; this module does not import redis."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_observers(register: Register) -> None:
    for scheme, over in (("redis", "Redis"), ("rediss", "Redis over TLS")):
        register(
            f"events.{scheme}",
            "agl_redis._bus:RedisBus",
            extra="redis",
            config="agl_events:BusOptions",
            summary=f"events in streams of {over}, with history and consumer groups",
        )
