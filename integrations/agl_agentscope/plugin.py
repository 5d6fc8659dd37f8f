"""Register this integration with agl-core without importing the framework."""

from __future__ import annotations

from agl_agentscope._versions import extra
from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "agentscope",
        "agl_agentscope._integration:AgentScopeIntegration",
        extra=extra(),
        summary="AgentScope: agents by their name, thinking separate from text",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "agentscope",
        "agl_agentscope._checks:pitfalls",
        extra=extra(),
        summary="the time of day in prompts, shared agents, swallowed tool errors",
    )
