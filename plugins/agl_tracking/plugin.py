"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_observers(register: Register) -> None:
    register(
        "trackers",
        "agl_tracking._threads:make_observer",
        summary="calls each tracker in a thread of its own and counts its failures",
    )
