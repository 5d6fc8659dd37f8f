"""Hooks of this package; this module does not import wandb."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_trackers(register: Register) -> None:
    register(
        "wandb",
        "agl_wandb._tracker:WandbTracker",
        extra="wandb",
        config="agl_wandb._options:WandbOptions",
        summary="a run at Weights & Biases, online or offline",
    )
