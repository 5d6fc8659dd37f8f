"""Experiment trackers: services that receive a run's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agl_core.types import Evaluation, Report, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """A run, as a tracker gets it before the first step."""

    name: str
    directory: Path
    """The run's directory; a tracker keeps here what it needs to continue after a crash."""
    config: Mapping[str, Any]
    """The resolved configuration as plain data, secrets blanked out."""
    resumed_at: int | None = None
    """Step of the checkpoint from which the run is resumed; later steps are repeated. None: the run
    starts, and files of an earlier try in the directory are obsolete."""


class Tracker(Protocol):
    """Sends a run's numbers to a service.

    All methods are called in one thread, in order, and may block; the run waits for `start` and
    `finish` only. What `start` raises ends the run before anything is loaded. What the others raise
    is counted as the loss ``tracker_<name>_failed`` and logged once, and the run continues.
    """

    def start(self, run: TrackedRun) -> None:
        """Open the tracker's run, or the one that a resumed run belongs to.

        Raises:
            ConfigError: it cannot be opened as it is configured.
        """
        ...

    def step(self, report: StepReport) -> None:
        """A step is done; a resumed run may repeat one that was reported before a crash."""
        ...

    def evaluation(self, evaluation: Evaluation) -> None:
        """The agents have been scored, after the step of that number."""
        ...

    def finish(self, outcome: Report | BaseException) -> None:
        """The run has ended, with a report or with an error; no call follows."""
        ...
