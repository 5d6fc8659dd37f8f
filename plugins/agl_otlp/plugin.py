"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "POST /traces",
        "agl_otlp._ingest:TraceIngest",
        summary="take spans over OTLP/HTTP into the attempts that run",
    )


@hookimpl
def agl_register_exporters(register: Register) -> None:
    register(
        "otlp",
        "agl_otlp._send:send_attempts",
        summary="send attempts as traces to an OTLP/HTTP collector",
    )
