"""The demo with rewards that say nothing, and without learning: neither must improve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agl_demo.command import demo_config

from agl_core.app import App, Inputs
from agl_core.types import Report
from tests.e2e.controls import Shuffled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONTROL_STEPS = 8
GAIN = 0.3
"""Half of what true rewards give in as many steps: 0.51 and 0.59 in two runs."""
TRIES = 4


async def _control(tmp_path: Path, *overrides: str, reward: Any = None) -> Report:
    config = demo_config(
        (f"directory={tmp_path}", f"train.steps={CONTROL_STEPS}", "store.name=memory", *overrides)
    )
    return await App(config, Inputs(reward=reward)).train()


def _gain(report: Report) -> float:
    before, after = (evaluation.score.mean for evaluation in report.evaluations)
    return after - before


@pytest.mark.timeout(1800)
async def test_shuffled_rewards_do_not_improve(tmp_path: Path) -> None:
    """Such rewards move the policy all the same: it walks, and may come out better or worse.

    A walk that came up to `GAIN` is walked anew, with other draws. Were it one in ten, all of four
    would come up once in 10,000 tests; a trainer that learns what the rewards do not say comes up
    every time.
    """
    for seed in range(TRIES):
        directory = tmp_path / str(seed)
        report = await _control(directory, f"seed={seed}", reward=Shuffled(seed))
        writer = report.policies["writer"]
        assert writer["sha256_before"] != writer["sha256_after"]
        if _gain(report) < GAIN:
            return
    pytest.fail(f"{TRIES} times the score rose by {GAIN} or more, the last time as in {report}")


async def test_learning_rate_zero_does_not_improve(tmp_path: Path) -> None:
    """Two samples of 200 tasks of one policy differ by `GAIN` less than once in 10,000 tests."""
    report = await _control(tmp_path, "algorithm.lr=0")
    assert _gain(report) < GAIN
    assert report.policies["writer"]["sha256_before"] == report.policies["writer"]["sha256_after"]
