"""A run that was interrupted and resumed ends with the very weights of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest
from agl_demo.command import demo_config

from agl_core.app import App
from agl_core.types import Report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def _run(directory: Path, *overrides: str) -> Report:
    settings = (
        f"directory={directory}",
        "name=run",
        "train.tasks_per_step=2",
        "train.checkpoint_every=1",
        "algorithm.group_size=4",
        "engine.deterministic=true",
        "tasks.val=null",
    )
    return await App(demo_config((*settings, *overrides))).train()


async def test_the_weights_are_bit_equal(tmp_path: Path) -> None:
    whole = await _run(tmp_path / "whole", "train.steps=4")
    first = await _run(tmp_path / "parts", "train.steps=2")
    resumed = await _run(tmp_path / "parts", "train.steps=4", "train.resume=true")
    end = "sha256_after"
    assert first.policies["writer"][end] != whole.policies["writer"][end]
    assert resumed.policies["writer"][end] == whole.policies["writer"][end]
    assert [step.reward for step in resumed.steps] == [step.reward for step in whole.steps]
