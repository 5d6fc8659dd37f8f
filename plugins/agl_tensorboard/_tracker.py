"""A tracker for TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path

from agl_tracking import (
    evaluation_numbers,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)

from agl_core.errors import TrainingError
from agl_core.interfaces import TrackedRun
from agl_core.types import Evaluation, Report, StepReport
from agl_tensorboard._events import EventFiles
from agl_tensorboard._options import TensorBoardOptions

_FOLDER = "tensorboard"


class TensorBoardTracker:
    """A tracker that writes numbers as scalars, the configuration and paths of weights as texts.

    A resumed run writes into the same folder; older values of the steps that it repeats are
    ignored.
    """

    def __init__(self, options: TensorBoardOptions) -> None:
        self._directory = options.directory
        self._events: EventFiles | None = None
        self._step = 0

    def start(self, run: TrackedRun) -> None:
        folder = (
            run.directory / _FOLDER
            if self._directory is None
            else Path(self._directory).expanduser() / run.name
        )
        self._step = run.resumed_at or 0
        first_step = 0 if run.resumed_at is None else run.resumed_at + 1
        self._events = EventFiles(folder, first_step=first_step)
        config = json.dumps(run.config, indent=2, ensure_ascii=False)
        self._events.texts({"config": f"```json\n{config}\n```"}, self._step)

    def step(self, report: StepReport) -> None:
        self._step = report.step
        self._opened.numbers(step_numbers(report), report.step)

    def evaluation(self, evaluation: Evaluation) -> None:
        self._opened.numbers(evaluation_numbers(evaluation), evaluation.step)

    def finish(self, outcome: Report | BaseException) -> None:
        self._opened.numbers(outcome_numbers(outcome), self._step)
        self._opened.texts(outcome_facts(outcome), self._step)
        self._opened.close()

    @property
    def _opened(self) -> EventFiles:
        if self._events is None:
            raise TrainingError(
                "The tracker 'tensorboard' got a report of a run that it did not start"
            )
        return self._events
