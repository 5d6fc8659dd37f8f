"""Register this integration with agl-core without importing the framework."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_integrations(register: Register) -> None:
    register(
        "langchain",
        "agl_langchain._integration:LangChainIntegration",
        extra="langchain",
        summary="LangChain and LangGraph: agents from lc_agent_name or the graph node",
    )


@hookimpl
def agl_register_checks(register: Register) -> None:
    register(
        "langchain",
        "agl_langchain._checks:pitfalls",
        extra="langchain",
        summary="caches, unnamed agents, models inside tools, closed event loops",
    )
