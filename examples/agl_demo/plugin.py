"""What the demo adds to agl-core: the command ``agl demo``."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    """Offer the command."""
    register(
        "demo",
        "agl_demo.command:command",
        extra="demo",
        summary="train the writer of a two-agent LangGraph program on this machine",
    )
