"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_displays(register: Register) -> None:
    register(
        "progress",
        "agl_progress._display:progress",
        summary="a panel on a terminal, one line per step in pipes and files",
    )
