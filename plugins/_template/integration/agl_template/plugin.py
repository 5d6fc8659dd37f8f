"""Hooks of this package; this module does not import the framework."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "template",
        "agl_template._integration:TemplateIntegration",
        extra="template",
        summary="One line for `agl plugins`: where this framework's agent names come from",
    )
