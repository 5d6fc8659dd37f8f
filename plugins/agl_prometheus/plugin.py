"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "GET /metrics",
        "agl_prometheus._route:PrometheusRoute",
        summary="counts of model requests for Prometheus",
    )
