"""Runs on verl whose trainer truly has no room left, on the disk or in memory."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import agl_core as agl
from agl_core._builtin import load_plugins
from agl_core.app import App, Inputs
from agl_core.config.loader import resolve
from agl_core.errors import TrainingError
from agl_core.interfaces import Observer
from agl_core.types import Evaluation, Report, StepReport
from tests.core.app.conftest import speak
from tests.trainers.verl.test_engine import MODEL

pytestmark = [
    pytest.mark.full,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # verl's and Ray's, of their own imports
]

STEPS = 3


class At(Observer):
    """Does something once a step is reported, which is before its checkpoint is written."""

    def __init__(self, step: int, work: Callable[[], None]) -> None:
        self._step, self._work = step, work

    def started(self, config: agl.RunConfig) -> None: ...
    def evaluation(self, evaluation: Evaluation) -> None: ...
    def finished(self, report: Report) -> None: ...

    def step(self, report: StepReport) -> None:
        if report.step == self._step:
            self._work()


async def writer(task: agl.Task) -> str:
    return await speak("writer", f"write {task.id}")


def by_length(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> float:
    return float(len(output))


def train(directory: Path, *observers: Observer, resume: bool = False) -> Report:
    config = resolve(
        {
            "name": "run",
            "directory": str(directory),
            "agents": ["writer"],
            "model": MODEL,
            "engine": {"name": "verl", "device": "cpu"},
            "algorithm": {"name": "grpo", "group_size": 4, "lr": 1e-3},
            "train": {"steps": STEPS, "tasks_per_step": 2, "resume": resume},
            "rollout": {"concurrency": 8, "timeout_s": 60.0, "max_tokens": 16},
        }
    )
    inputs = Inputs(agent=writer, reward=by_length, tasks=[{"input": each} for each in range(2)])
    app = App(config, inputs, observers=observers, plugins=load_plugins())
    return asyncio.run(app.train())


def trainer() -> psutil.Process:
    """The process of verl's that trains."""
    family = psutil.Process().children(recursive=True)
    (found,) = (each for each in family if each.cmdline()[:1] == ["ray::Actor"])
    return found


def limit(kind: int, value: int) -> None:
    """Let the trainer's process have no more; it does not hear of it."""
    resource.prlimit(trainer().pid, kind, (value, resource.RLIM_INFINITY))


def checkpoints(directory: Path) -> list[str]:
    return sorted(
        path.name for path in (directory / "run" / "checkpoints").iterdir() if path.name[0] != "."
    )


def largest(directory: Path) -> int:
    return max(file.stat().st_size for file in (directory / "run").rglob("training_state/*"))


def test_a_run_goes_on_from_the_checkpoint_before_its_trainer_had_no_room(tmp_path: Path) -> None:
    def no_large_files() -> None:
        limit(resource.RLIMIT_FSIZE, largest(tmp_path) // 2)

    with pytest.raises(
        TrainingError, match=r"could not write .*step-000002.* train\.resume = true"
    ):
        train(tmp_path, At(2, no_large_files))
    assert checkpoints(tmp_path) == ["step-000001"]

    def no_memory() -> None:
        limit(resource.RLIMIT_AS, 1 << 20)

    with pytest.raises(TrainingError, match=r"(died|out of memory): .* train\.resume = true"):
        train(tmp_path, At(2, no_memory), resume=True)
    kept = checkpoints(tmp_path)
    assert kept[0] == "step-000001"

    report = train(tmp_path, resume=True)
    assert [step.step for step in report.steps] == list(range(1, STEPS + 1))
    assert checkpoints(tmp_path)[-1] == f"step-{STEPS:06d}"
    assert report.policies["trained"]["version"] == STEPS
