"""The tracker ``verl``: sends a run's numbers to verl's tracking backends."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from agl_tracking import (
    SentLog,
    evaluation_numbers,
    outcome_numbers,
    step_numbers,
)
from pydantic import BaseModel, ConfigDict, Field

from agl_core.errors import ConfigError
from agl_core.interfaces import TrackedRun
from agl_core.types import Evaluation, Report, StepReport
from agl_verl import _compat

__all__ = ["VerlTracker", "VerlTrackerOptions"]

_NAME: Final = "verl"


class VerlTrackerOptions(BaseModel):
    """Options of `VerlTracker`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    backends: list[str] = Field(min_length=1)
    """verl's names, as in its ``trainer.logger``: ``console``, ``file``, ``tensorboard``,
    ``wandb``, ``mlflow``, ``swanlab`` ..."""
    project: str = "agl"
    """verl's ``trainer.project_name``; the run's own name is its ``trainer.experiment_name``."""


class VerlTracker:
    """Sends numbers through ``verl.utils.tracking.Tracking``.

    verl's environment variables set where its backends write. Without them, files are written to
    the run's directory.
    """

    def __init__(self, options: VerlTrackerOptions) -> None:
        _compat.check_version()
        supported: list[str] = _compat.Tracking.supported_backend
        unknown = [name for name in options.backends if name not in supported]
        if unknown:
            raise ConfigError(
                f"Tracker 'verl': verl has no backend {unknown[0]!r}, only {', '.join(supported)}"
            )
        self._options = options
        self._tracking: Any = None
        self._sent_log: Any = None
        self._step = 0

    def start(self, run: TrackedRun) -> None:
        options = self._options
        self._step = run.resumed_at or 0
        self._sent_log = SentLog.open(run, _NAME) or SentLog.create(
            run, _NAME, secrets.token_hex(4)
        )
        # verl reads the key `trainer` of the configuration.
        config = {**run.config, "trainer": {}}
        try:
            if "wandb" in options.backends:
                self._begin_at_wandb(run, config)
            with _environment(self._places(run.directory.absolute() / _NAME / self._sent_log.run)):
                self._tracking = _compat.Tracking(
                    options.project, run.name, list(options.backends), config=config
                )
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"Tracker 'verl': a backend of {options.backends} needs the package "
                f"{error.name!r}, which is not installed: pip install {error.name}"
            ) from error
        missing = [name for name in options.backends if name not in self._tracking.logger]
        if missing:
            raise ConfigError(
                f"Tracker 'verl': the backend {missing[0]!r} did not start; verl's log says why"
            )

    def step(self, report: StepReport) -> None:
        self._step = report.step
        if self._sent_log.takes_step(report.step):
            self._log(step_numbers(report), report.step)

    def evaluation(self, evaluation: Evaluation) -> None:
        if self._sent_log.takes_evaluation(evaluation):
            self._log(evaluation_numbers(evaluation), evaluation.step)

    def finish(self, outcome: Report | BaseException) -> None:
        self._log(outcome_numbers(outcome), self._step)
        self._tracking.finish(exit_code=1 if isinstance(outcome, BaseException) else 0)

    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        self._tracking.log(data=dict(numbers), step=step)
        for backend in self._tracking.logger.values():
            # TensorBoard's writer buffers for two minutes; a killed process would lose the data.
            writer = getattr(backend, "writer", None)
            if writer is not None:
                writer.flush()

    def _begin_at_wandb(self, run: TrackedRun, config: Mapping[str, Any]) -> None:
        """Open the wandb run under an id that survives resuming; verl then uses the open run.

        wandb reads its environment only once per process, so a variable cannot set the id.
        """
        wandb: Any = importlib.import_module("wandb")
        wandb.init(
            id=self._sent_log.run,
            resume="allow",
            project=self._options.project,
            name=run.name,
            dir=str(run.directory),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True, login_timeout=1),
        )

    @staticmethod
    def _places(folder: Path) -> dict[str, str]:
        """Return the variables for verl's output files that the user has not set."""
        places: dict[str, str] = {}
        if "TENSORBOARD_DIR" not in os.environ:
            places["TENSORBOARD_DIR"] = str(folder / "tensorboard")
        if not {"VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT"} & os.environ.keys():
            folder.mkdir(parents=True, exist_ok=True)
            # verl truncates the file that it opens, so a resumed run needs another.
            number = len(list(folder.glob("numbers-*.jsonl"))) + 1
            places["VERL_FILE_LOGGER_PATH"] = str(folder / f"numbers-{number}.jsonl")
        return places


@contextmanager
def _environment(variables: Mapping[str, str]) -> Generator[None, None, None]:
    """Set environment variables temporarily: verl's backends have no other option for paths."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
