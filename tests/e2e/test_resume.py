"""A run that was interrupted and resumed ends with the very weights of one that was not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agl_demo.command import demo_config

from agl_core.app import App
from agl_core.interfaces import Observer
from agl_core.types import Evaluation, Report, StepReport

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class StoppedError(Exception):
    """Ends a run as a crash does."""


class Stops:
    """Ends a run after a step."""

    def __init__(self, *, after: int) -> None:
        self.after = after

    def started(self, config: Any) -> None: ...

    def step(self, report: StepReport) -> None:
        if report.step == self.after:
            raise StoppedError

    def evaluation(self, evaluation: Evaluation) -> None: ...

    def finished(self, report: Report) -> None: ...


async def _run(directory: Path, *overrides: str, observers: Sequence[Observer] = ()) -> Report:
    settings = (
        f"directory={directory}",
        "name=run",
        "train.tasks_per_step=2",
        "train.checkpoint_every=1",
        "algorithm.group_size=4",
        "engine.deterministic=true",
        "tasks.val=null",
    )
    return await App(demo_config((*settings, *overrides)), observers=observers).train()


async def test_the_weights_are_bit_equal(tmp_path: Path) -> None:
    whole = await _run(tmp_path / "whole", "train.steps=4")
    first = await _run(tmp_path / "parts", "train.steps=2")
    resumed = await _run(tmp_path / "parts", "train.steps=4", "train.resume=true")
    end = "sha256_after"
    assert first.policies["writer"][end] != whole.policies["writer"][end]
    assert resumed.policies["writer"][end] == whole.policies["writer"][end]
    assert [step.reward for step in resumed.steps] == [step.reward for step in whole.steps]


FIRST = {"algorithm": "grpo", "steps": 2, "lr": 1e-3}
SECOND = {"algorithm": "rloo", "steps": 2, "lr": 3e-4, "weight_decay": 0.1, "group_size": 2}
PHASES = f"phases={json.dumps([FIRST, SECOND])}"


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_phases_with_settings_of_their_own_resume_alike(tmp_path: Path, after: int) -> None:
    """The optimizer's state stays from phase to phase, and comes back from the checkpoint."""
    whole = await _run(tmp_path / "whole", "train.steps=4", PHASES)
    stops = [Stops(after=after)]
    with pytest.raises(StoppedError):
        await _run(tmp_path / "parts", "train.steps=4", PHASES, observers=stops)
    resumed = await _run(tmp_path / "parts", "train.steps=4", PHASES, "train.resume=true")
    end = "sha256_after"
    assert resumed.policies["writer"][end] == whole.policies["writer"][end]
    assert [step.rollouts for step in resumed.steps] == [8, 8, 4, 4]
