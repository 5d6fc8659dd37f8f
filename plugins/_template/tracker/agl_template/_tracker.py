"""A tracker that writes a run's numbers to a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agl_tracking import (
    evaluation_numbers,
    flat_config,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)

from agl_core.interfaces import TrackedRun
from agl_core.types import Evaluation, Report, StepReport
from agl_template._options import TemplateOptions


class TemplateTracker:
    """A tracker with one file per run, which it rewrites after each step.

    Replace `_write` by calls of the service's client. All methods are called in one thread, in
    order. An exception in `start` ends the run; one in another method is counted.
    """

    def __init__(self, options: TemplateOptions) -> None:
        self._options = options
        self._file = Path()
        self._run: dict[str, Any] = {}
        self._step = 0

    def start(self, run: TrackedRun) -> None:
        """Open the run; a resumed one keeps its numbers up to the checkpoint."""
        self._file = run.directory / self._options.file
        numbers: dict[str, list[dict[str, float]]] = {}
        self._step = run.resumed_at or 0
        if run.resumed_at is not None and self._file.is_file():
            kept = json.loads(self._file.read_text(encoding="utf-8"))["numbers"]
            numbers = {step: known for step, known in kept.items() if int(step) <= run.resumed_at}
        self._run = {"numbers": numbers, "settings": flat_config(run.config), "facts": {}}
        self._write(self._step, {})

    def step(self, report: StepReport) -> None:
        self._step = report.step
        self._write(report.step, step_numbers(report))

    def evaluation(self, evaluation: Evaluation) -> None:
        self._write(evaluation.step, evaluation_numbers(evaluation))

    def finish(self, outcome: Report | BaseException) -> None:
        self._run["facts"] = dict(outcome_facts(outcome))
        self._write(self._step, outcome_numbers(outcome))

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Send numbers of a step; a step may have several evaluations."""
        self._run["numbers"].setdefault(str(step), []).append(dict(numbers))
        self._file.write_text(json.dumps(self._run), encoding="utf-8")
