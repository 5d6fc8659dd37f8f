"""Hooks of this package; this module does not import the engine's libraries."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_engines(register: Register) -> None:
    register(
        "template",
        "agl_template._engine:TemplateEngine",
        extra="template",
        config="agl_template._options:TemplateOptions",
        summary="One line for `agl plugins`: what serves and trains the weights",
    )


@hookimpl
def agl_register_losses(register: Register) -> None:
    register(
        "template.policy_gradient",
        "agl_template._loss:PolicyGradient",
        extra="template",
        config="agl_template._loss:PolicyGradientOptions",
        summary="One line for each loss that the engine offers to algorithms",
    )
