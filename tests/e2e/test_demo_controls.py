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


async def _control(tmp_path: Path, *overrides: str, reward: Any = None) -> Report:
    config = demo_config(
        (f"directory={tmp_path}", f"train.steps={CONTROL_STEPS}", "store.name=memory", *overrides)
    )
    return await App(config, Inputs(reward=reward)).train()


async def test_shuffled_rewards_do_not_improve(tmp_path: Path) -> None:
    report = await _control(tmp_path, reward=Shuffled())
    before, after = (evaluation.score for evaluation in report.evaluations)
    assert after.low <= before.high
    assert report.policies["writer"]["sha256_before"] != report.policies["writer"]["sha256_after"]


async def test_learning_rate_zero_does_not_improve(tmp_path: Path) -> None:
    report = await _control(tmp_path, "algorithm.lr=0")
    before, after = (evaluation.score for evaluation in report.evaluations)
    assert after.low <= before.high
    assert report.policies["writer"]["sha256_before"] == report.policies["writer"]["sha256_after"]
