"""Hooks of this package; the algorithm itself is imported when a run chooses it."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_algorithms(register: Register) -> None:
    register(
        "template",
        "agl_template._algorithm:Template",
        config="agl_template._algorithm:TemplateOptions",
        summary="One line for `agl plugins`: what the advantage is, and which loss it needs",
    )
