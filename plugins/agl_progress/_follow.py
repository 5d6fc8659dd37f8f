"""Follow the log of a run that another process writes, and show its events on a display."""

from __future__ import annotations

from pathlib import Path

from agl_reading import LogEvent, LoggedRun, LogReader, RunStatus, read_record

from agl_core.clocks import monotonic, wall
from agl_progress._display import Display


class LogFollower:
    """Shows what is new in a run's log on a display.

    Without a log, the report that the run left is shown. A run that is resumed continues its log.
    """

    def __init__(self, directory: Path, display: Display) -> None:
        self._directory = directory
        self._display = display
        self._log = LogReader(directory)
        self._run = LoggedRun()

    @property
    def state(self) -> RunStatus:
        return self._run.status

    @property
    def process(self) -> str:
        """The process that runs or ran the run."""
        return self._run.process

    @property
    def error(self) -> str:
        """Why the run failed."""
        return self._run.error

    @property
    def damaged(self) -> int:
        """Lines that could not be read."""
        return self._log.damaged

    @property
    def deleted(self) -> bool:
        """Whether the log is gone that was read."""
        return self._log.deleted

    def read(self) -> None:
        """Show what was written since the last call.

        Raises:
            OSError: the log cannot be read; that there is none is no error.
        """
        if not self._log.read(self) and self._run.end is None:
            self._read_report()

    def restart(self) -> None:
        self._run = LoggedRun()

    def take(self, event: LogEvent) -> None:
        self._run.note(event)
        if event.step is not None:
            self._display.step(event.step)
        elif event.evaluation is not None:
            self._display.evaluation(event.evaluation)
        elif event.kind == "started":
            self._begin(self._run.planned, age=max(0.0, wall() - event.at))
        elif event.kind == "stage":
            self._display.stage(self._run.stage)

    def _begin(self, steps: int, *, age: float) -> None:
        self._display.begin(self._directory.name, steps, began=monotonic() - age)

    def _read_report(self) -> None:
        record = read_record(self._directory)
        if record is None or not record.finished:
            return
        self._begin(record.steps[-1].steps if record.steps else 0, age=record.wall_s)
        for step in record.steps:
            self._display.step(step)
        for evaluation in record.evaluations:
            self._display.evaluation(evaluation)
        self._run.end = "finished"
