"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_adapters(register: Register) -> None:
    register(
        "triplets",
        "agl_compat._adapter:TripletAdapter",
        summary="as trajectory, and takes the triplets that a rollout function returns",
    )


@hookimpl
def agl_register_routes(register: Register) -> None:
    register(
        "POST /triplets",
        "agl_compat._route:TripletIngest",
        summary="record triplets of a rollout function as calls",
    )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "compat",
        "agl_compat._command:command",
        summary="train from a file with the sections agent, training and environment",
    )
