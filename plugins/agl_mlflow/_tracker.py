"""A tracker for MLflow."""

from __future__ import annotations

import asyncio
import importlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from agl_tracking import (
    SentLog,
    evaluation_numbers,
    flat_config,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)

from agl_core.errors import ConfigError
from agl_core.interfaces import TrackedRun
from agl_core.types import Evaluation, Report, StepReport
from agl_mlflow._names import mlflow_name
from agl_mlflow._options import MlflowOptions

T = TypeVar("T")

_NAME: Final = "mlflow"
_EXPERIMENT: Final = "agl"
_DATABASE: Final = "mlflow.db"
_ARTIFACTS: Final = "mlartifacts"
_AT_ONCE: Final = 100
"""Most settings per request."""
_LONGEST: Final = 500
"""Most characters of a setting: the limit that all of MLflow's databases have in common."""
_LONGEST_TAG: Final = 5000
"""Most characters of a tag, in all versions of MLflow."""


class MlflowTracker:
    """A tracker that logs numbers as metrics, settings as parameters, and paths of weights as tags.

    A resumed run continues the same MLflow run. MLflow stores every value, so sent values stay.
    """

    def __init__(self, options: MlflowOptions) -> None:
        # MLflow sends usage data to its vendor for every run that it opens.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        self._mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._options = options
        self._client: Any = None
        self._sent_log: Any = None
        self._step = 0

    def start(self, run: TrackedRun) -> None:
        self._step = run.resumed_at or 0
        runs = run.directory.absolute().parent
        address = self._address(runs)
        self._client = self._mlflow.MlflowClient(tracking_uri=address)
        self._sent_log = SentLog.open(run, _NAME)
        if self._sent_log is None:
            created = self._client.create_run(
                self._experiment(runs, local=address.startswith("sqlite:")),
                run_name=run.name,
                tags=self._options.tags,
            )
            self._sent_log = SentLog.create(run, _NAME, created.info.run_id)
        else:
            self._client.update_run(self._sent_log.run, status="RUNNING")
        self._log_settings(flat_config(run.config))

    def step(self, report: StepReport) -> None:
        self._step = report.step
        if self._sent_log.takes_step(report.step):
            self._log_numbers(step_numbers(report), report.step)

    def evaluation(self, evaluation: Evaluation) -> None:
        if self._sent_log.takes_evaluation(evaluation):
            self._log_numbers(evaluation_numbers(evaluation), evaluation.step)

    def finish(self, outcome: Report | BaseException) -> None:
        self._log_numbers(outcome_numbers(outcome), self._step)
        self._log_texts(outcome_facts(outcome))
        status = "FINISHED"
        if isinstance(outcome, BaseException):
            stopped = isinstance(outcome, (asyncio.CancelledError, KeyboardInterrupt))
            status = "KILLED" if stopped else "FAILED"
        self._client.set_terminated(self._sent_log.run, status=status)

    def _address(self, runs: Path) -> str:
        given = self._options.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if given is None:
            return f"sqlite:///{runs / _DATABASE}"
        if "://" not in given or given.startswith("file:"):
            raise ConfigError(
                f"Tracker 'mlflow': {given!r} is a folder, where MLflow cannot keep both of "
                f"'reward' and 'reward/main': use sqlite:///FILE or a server"
            )
        return given

    def _experiment(self, runs: Path, *, local: bool) -> str:
        """Return the id of the experiment, which is created if missing."""
        name = self._options.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        # Artifacts are stored next to the run, not in the working directory.
        place = (runs / _ARTIFACTS).as_uri() if local else None
        try:
            return self._client.create_experiment(name, artifact_location=place)
        except self._mlflow.MlflowException:
            found = self._client.get_experiment_by_name(name)  # another run created it first
            if found is None:
                raise
            return found.experiment_id

    def _log_settings(self, settings: Mapping[str, str]) -> None:
        """Log new settings as parameters, and changed ones as tags: parameters are final."""
        named = {mlflow_name(key): value[:_LONGEST] for key, value in settings.items()}
        there = self._client.get_run(self._sent_log.run).data.params
        new = [self._entities.Param(key, value) for key, value in named.items() if key not in there]
        for some in _portions(new):
            self._client.log_batch(self._sent_log.run, params=some)
        changed = {key: value for key, value in named.items() if there.get(key, value) != value}
        self._log_texts({f"resumed/{key}": value for key, value in changed.items()})

    def _log_texts(self, texts: Mapping[str, str]) -> None:
        """Log texts as tags; one that is too long for a tag is also a file, whole."""
        named = {mlflow_name(key): value for key, value in texts.items()}
        for name, value in named.items():
            if len(value) > _LONGEST_TAG:
                self._client.log_text(self._sent_log.run, value, f"{name}.txt")
        tags = [self._entities.RunTag(key, value[:_LONGEST_TAG]) for key, value in named.items()]
        for some in _portions(tags):
            self._client.log_batch(self._sent_log.run, tags=some)

    def _log_numbers(self, numbers: Mapping[str, float], step: int) -> None:
        now = time.time_ns() // 1_000_000
        metrics = [
            self._entities.Metric(mlflow_name(name), value, now, step)
            for name, value in numbers.items()
        ]
        for some in _portions(metrics):
            self._client.log_batch(self._sent_log.run, metrics=some)


def _portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]
