"""Hooks of this package; this module does not import the event file writer."""

from __future__ import annotations

from agl_core.interfaces import Register
from agl_core.plugins import hookimpl


@hookimpl
def agl_register_trackers(register: Register) -> None:
    register(
        "tensorboard",
        "agl_tensorboard._tracker:TensorBoardTracker",
        extra="tensorboard",
        config="agl_tensorboard._options:TensorBoardOptions",
        summary="event files in the run's directory, for TensorBoard",
    )
