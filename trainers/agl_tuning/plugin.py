"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_tuners(register: Register) -> None:
    register(
        "prompts",
        "agl_tuning._tuner:PromptTuner",
        summary="learns captured prompts and runs phases of prompt optimisers",
    )
