"""Register this integration with agl-core without importing the framework."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "crewai",
        "agl_crewai._integration:CrewAIIntegration",
        extra="crewai",
        summary="CrewAI: agents from their role, crews, flows and delegation",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "crewai",
        "agl_crewai._checks:pitfalls",
        extra="crewai",
        summary="prompts that CrewAI rewrites, telemetry, roles, agents run again, failed tools",
    )
