"""Register this integration with agl-core without importing the client."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "openai",
        "agl_openai._integration:OpenAIIntegration",
        extra="openai",
        summary="The plain OpenAI client, versions 2 and 3: agents from agl.agent_scope",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "openai",
        "agl_openai._checks:pitfalls",
        extra="openai",
        summary="retries, clients made too early, closed event loops",
    )
