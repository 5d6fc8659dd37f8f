"""Hooks of this package; this module does not import the tracker's client."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_trackers(register: Register) -> None:
    register(
        "template",
        "agl_template._tracker:TemplateTracker",
        extra="template",
        config="agl_template._options:TemplateOptions",
        summary="One line for `agl plugins`: where a run's numbers go",
    )
