"""Register this integration with agl-core without importing the framework."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "openai_agents",
        "agl_openai_agents._integration:OpenAIAgentsIntegration",
        extra="openai-agents",
        summary="OpenAI Agents SDK: agents from the tracing span that is current at send",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "openai_agents",
        "agl_openai_agents._checks:pitfalls",
        extra="openai-agents",
        summary="disabled tracing, unnamed agents, calls past the gateway, swallowed tool errors",
    )
