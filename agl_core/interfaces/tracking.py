"""Where a run's numbers go beside its own report: experiment trackers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agl_core.types import Evaluation, Report, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run before it begins."""

    name: str
    directory: Path
    """The run's own; a tracker keeps here what it needs to go on after a crash."""
    config: Mapping[str, Any]
    """The resolved configuration as plain data, secrets blanked out."""
    resumed_at: int | None = None
    """Step of the checkpoint that the run goes on from; later steps come again. None: it begins,
    and what an earlier try left in the directory is of no use."""


class Tracker(Protocol):
    """Takes a run's numbers to where people look at them.

    All methods are called in one thread, in order, and may block; the run waits for `start` and
    `finish` only. What `start` raises ends the run before anything is loaded. What the others raise
    is counted as the loss ``tracker_<name>_failed`` and told once, and the run goes on.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the tracker's run, or the one that a resumed run belongs to.

        Raises:
            ConfigError: it cannot be opened as it is configured.
        """
        ...

    def step(self, report: StepReport) -> None:
        """A step is done; a resumed run may tell one again that was told before a crash."""
        ...

    def evaluation(self, evaluation: Evaluation) -> None:
        """The agents have been scored, after the step of that number."""
        ...

    def finish(self, outcome: Report | BaseException) -> None:
        """The run has ended well, or with this error; nothing is told after it."""
        ...
