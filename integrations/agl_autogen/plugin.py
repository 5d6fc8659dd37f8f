"""Register this integration with agl-core without importing the framework."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "autogen",
        "agl_autogen._integration:AutoGenIntegration",
        extra="autogen",
        summary="AutoGen: agents and teams of agentchat, and agents of core by their type",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "autogen",
        "agl_autogen._checks:pitfalls",
        extra="autogen",
        summary="answers without a request, unread tool results, thoughts, selectors, runtimes",
    )
