"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "init",
        "agl_init._command:command",
        summary="write a run file, tasks and a reward for a program that works",
    )
