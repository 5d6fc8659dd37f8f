"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_optimizers(register: Register) -> None:
    register(
        "apo",
        "agl_apo._apo:apo",
        config="agl_apo._options:ApoOptions",
        summary="textual gradients with beam search: critique, edit, validate, keep the best",
    )
