"""What agl-core gets from this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "doctor",
        "agl_doctor.command:command",
        summary="try a run on a few tasks and say what is wrong with it",
    )
