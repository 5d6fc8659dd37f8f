"""A log of what was sent to a service, for services that cannot replace a value."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from agl_core.files import make_private_directory, write_private
from agl_core.interfaces import TrackedRun
from agl_core.types import Evaluation

_log = logging.getLogger(__name__)

_FOLDER: Final = "trackers"
"""Folder in a run's directory."""


class _Sent(msgspec.Struct, kw_only=True):
    run: str
    step: int = -1
    evaluation: int = -1
    """Step of the newest evaluation."""
    phase: int = -1
    """The prompt phase that the newest evaluation followed; -1 if it followed none."""


class SentLog:
    """The newest step and evaluation sent to a service, in a file in the run's directory.

    For services that cannot replace a value: a resumed run continues the service's run, and
    repeated steps are not sent a second time.
    """

    def __init__(self, file: Path, sent: _Sent) -> None:
        self._file = file
        self._sent = sent

    @classmethod
    def open(cls, run: TrackedRun, tracker: str) -> SentLog | None:
        """Open the log of a resumed run; None for a new run, or if there is no log."""
        file = _log_file(run, tracker)
        if run.resumed_at is None or not file.exists():
            return None
        sent = msgspec.json.decode(file.read_bytes(), type=_Sent)
        if sent.step > run.resumed_at:
            _log.warning(
                "Tracker %r was sent steps up to %d before the run was interrupted: their first "
                "values stay, steps from %d on are not sent again",
                tracker,
                sent.step,
                run.resumed_at + 1,
            )
        return cls(file, sent)

    @classmethod
    def create(cls, run: TrackedRun, tracker: str, service_run: str) -> SentLog:
        """Create the log of a new run of the service."""
        file = _log_file(run, tracker)
        make_private_directory(file.parent)
        log = cls(file, _Sent(run=service_run))
        log._write()
        return log

    @property
    def run(self) -> str:
        """Name of the service's run."""
        return self._sent.run

    def takes_step(self, step: int) -> bool:
        """Return whether the step must be sent, and mark it as sent."""
        if step <= self._sent.step:
            return False
        self._sent.step = step
        self._write()
        return True

    def takes_evaluation(self, evaluation: Evaluation) -> bool:
        """Return whether the evaluation must be sent, and mark it as sent.

        Prompt phases take no step, so evaluations after them have the step of the one before.
        """
        phase = -1 if evaluation.phase is None else evaluation.phase
        if (evaluation.step, phase) <= (self._sent.evaluation, self._sent.phase):
            return False
        self._sent.evaluation, self._sent.phase = evaluation.step, phase
        self._write()
        return True

    def _write(self) -> None:
        written = self._file.with_suffix(".tmp")
        write_private(written, msgspec.json.encode(self._sent))
        written.replace(self._file)


def _log_file(run: TrackedRun, tracker: str) -> Path:
    return run.directory / _FOLDER / f"{tracker}.json"
