"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl
from agl_privacy._logs import masking


@hookimpl
def agl_register_observers(register: Register) -> None:
    masking()  # logs are masked from here on, before a run has a configuration
    register(
        "privacy",
        "agl_privacy._observer:make_observer",
        config="agl_privacy._options:PrivacyOptions",
        summary="masks personal data in logs, and keeps it out of training",
    )
