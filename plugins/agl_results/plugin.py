"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    for name, summary in (
        ("eval", "score an agent program, or compare two versions of its prompts"),
        ("export", "write trained weights and tuned prompts to files"),
        ("serve", "serve trained weights and tuned prompts to any OpenAI client"),
    ):
        register(name, f"agl_results._{name}:command", summary=summary)
