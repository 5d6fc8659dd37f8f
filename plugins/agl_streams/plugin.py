"""Hooks of this package."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from agl_core.plugins import hookimpl

if TYPE_CHECKING:
    from agl_core.config import RunConfig
    from agl_core.types import Batch, Losses, Trajectory, Update
    from agl_streams._writer import StreamWriter

_WRITER: Final[ContextVar[StreamWriter | None]] = ContextVar("agl_streams", default=None)
"""Of the run that the current task belongs to."""


@hookimpl
def agl_run_started(config: RunConfig) -> None:
    from agl_streams._writer import StreamWriter  # noqa: PLC0415  no run of prompts alone needs it

    _WRITER.set(StreamWriter.of(config))


@hookimpl
def agl_trajectories_built(trajectories: Sequence[Trajectory]) -> None:
    if (writer := _WRITER.get()) is not None:
        writer.joined(trajectories)


@hookimpl
def agl_batch_built(batch: Batch, step: int) -> None:
    if (writer := _WRITER.get()) is not None:
        writer.built(batch, step)


@hookimpl
def agl_update_applied(update: Update, step: int, losses: Losses) -> None:
    if (writer := _WRITER.get()) is not None:
        writer.applied(update, step, losses)
