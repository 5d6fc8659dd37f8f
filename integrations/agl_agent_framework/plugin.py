"""Register this integration with agl-core without importing the framework."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "agent_framework",
        "agl_agent_framework._integration:AgentFrameworkIntegration",
        extra="agent-framework",
        summary="Microsoft Agent Framework: agents by their name, also in orchestrations",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "agent_framework",
        "agl_agent_framework._checks:pitfalls",
        extra="agent-framework",
        summary="unnamed agents, models inside tools, swallowed tool errors, lost reasoning",
    )
