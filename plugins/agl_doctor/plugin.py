"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "doctor",
        "agl_doctor._command:command",
        summary="run a few tasks and report what is wrong",
    )
    register(
        "plugins",
        "agl_doctor._plugins:command",
        summary="list plugins with version and state",
    )


@hookimpl
def agl_register_diagnoses(register: Register) -> None:
    register(
        "breaks",
        "agl_doctor._continuity:breaks",
        summary="prompts that do not continue an earlier call token by token, by likely cause",
    )
