"""Hooks of this package."""

from __future__ import annotations

from typing import Any

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_admissions(register: Register) -> None:
    register(
        "limits",
        "agl_limits._gateway:make_admission",
        extra="limits",
        config="agl_limits._options:LimitsOptions",
        summary="limits the rate of model requests by key, agent, policy and address",
    )


@hookimpl
def agl_config_resolved(config: Any) -> None:
    """Limit the requests to endpoints outside, in this context, as the section says."""
    from agl_endpoints import THROTTLES  # noqa: PLC0415

    if not config.sections.get("limits", {}).get("endpoints"):
        THROTTLES.set(None)
        return
    from agl_limits._outside import make_throttles  # noqa: PLC0415

    THROTTLES.set(make_throttles(config))
