"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "prompts",
        "agl_prompts._command:command",
        summary="show the versions of a run's tuned prompts",
    )


@hookimpl
def agl_register_rewriters(register: Register) -> None:
    register(
        "prompts",
        "agl_prompts._captured_gateway:CapturedPrompts",
        summary="replaces captured prompts by their tuned texts",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register("prompts", "agl_prompts._sent:sent", summary="prompts that the agents do not send")
