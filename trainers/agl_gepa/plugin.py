"""Hooks of this package."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_optimizers(register: Register) -> None:
    register(
        "gepa",
        "agl_gepa._optimizer:gepa_optimizer",
        extra="gepa",
        config="agl_gepa._options:GepaOptions",
        summary="gepa: edits by reflection on traces, parents from the Pareto front",
    )
