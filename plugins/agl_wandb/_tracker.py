"""A tracker for Weights & Biases."""

from __future__ import annotations

import importlib
import os
import secrets
from typing import Any, Final

from agl_tracking import (
    SentLog,
    evaluation_numbers,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)

from agl_core.errors import ConfigError
from agl_core.interfaces import TrackedRun
from agl_core.types import Evaluation, Report, StepReport
from agl_wandb._options import WandbOptions

_NAME: Final = "wandb"
_PROJECT: Final = "agl"
_AXIS: Final = "step"
"""Axis of all other numbers: W&B's own step can only grow, so the training step is a number."""


class WandbTracker:
    """A tracker that logs numbers as history, the configuration as config, results as summary.

    A resumed run keeps the id of the run that it continues.
    """

    def __init__(self, options: WandbOptions) -> None:
        # wandb reports its own errors to its vendor only if the user turns that on.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb: Any = importlib.import_module("wandb")
        self._options = options
        self._sent_log: Any = None
        self._run: Any = None
        self._step = 0

    def start(self, run: TrackedRun) -> None:
        given, environ = self._options, os.environ
        self._step = run.resumed_at or 0
        self._sent_log = SentLog.open(run, _NAME) or SentLog.create(
            run, _NAME, secrets.token_hex(4)
        )
        try:
            self._run = self._wandb.init(
                id=self._sent_log.run,
                resume="allow",
                reinit="create_new",
                project=given.project or environ.get("WANDB_PROJECT") or _PROJECT,
                entity=given.entity,
                name=run.name,
                group=given.group,
                tags=given.tags or None,
                mode=given.mode or environ.get("WANDB_MODE"),
                dir=str(run.directory),
                config=dict(run.config),
                # Do not capture the program's output, and never prompt for input.
                settings=self._wandb.Settings(console="off", silent=True, login_timeout=1),
                allow_val_change=True,
            )
        except (self._wandb.errors.UsageError, TimeoutError) as error:
            raise ConfigError(
                f"Tracker 'wandb' cannot be started: {error} Set WANDB_API_KEY or run wandb login "
                f"first; mode = 'offline' needs neither"
            ) from error
        self._run.define_metric("*", step_metric=_AXIS)

    def step(self, report: StepReport) -> None:
        self._step = report.step
        if self._sent_log.takes_step(report.step):
            self._run.log({_AXIS: report.step, **step_numbers(report)})

    def evaluation(self, evaluation: Evaluation) -> None:
        if self._sent_log.takes_evaluation(evaluation):
            self._run.log({_AXIS: evaluation.step, **evaluation_numbers(evaluation)})

    def finish(self, outcome: Report | BaseException) -> None:
        self._run.log({_AXIS: self._step, **outcome_numbers(outcome)})
        self._run.summary.update(outcome_facts(outcome))
        self._run.finish(exit_code=1 if isinstance(outcome, BaseException) else 0)
