"""Runs that are made longer when they are resumed: more steps of their last phase, or more phases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agl_core.errors import ConfigError
from agl_core.types import Report
from tests.core.app.conftest import Bench

STEPS = {"algorithm": "reinforce", "steps": 2}
OTHERS = {"algorithm": "grpo", "steps": 1, "group_size": 2}


def train(bench: Bench, *phases: dict[str, Any], **settings: Any) -> Report:
    bench.sections = {
        "phases": list(phases),
        "train": {"tasks_per_step": 2},
        "store": {"name": "sqlite"},
    }
    return bench.train(**settings)


@pytest.mark.parametrize(
    "longer",
    [
        [{**STEPS, "steps": 4}],
        [STEPS, OTHERS],
        [{**STEPS, "steps": 3}, OTHERS, STEPS],
    ],
)
def test_a_longer_run_is_the_one_that_was_planned_so(
    tmp_path: Path, longer: list[dict[str, Any]]
) -> None:
    whole = train(Bench(tmp_path / "whole"), *longer)
    bench = Bench(tmp_path / "resumed")
    train(bench, STEPS)
    resumed = train(bench, *longer, train__resume=True)
    assert [step.step for step in resumed.steps] == [step.step for step in whole.steps]
    assert [step.reward for step in resumed.steps] == [step.reward for step in whole.steps]
    end = "sha256_after"
    assert resumed.policies["trained"][end] == whole.policies["trained"][end]


@pytest.mark.parametrize(
    "other",
    [
        [{**STEPS, "lr": 0.5}, OTHERS],
        [{**STEPS, "steps": 1}, {**OTHERS, "steps": 2}],
        [STEPS],
        [OTHERS, STEPS],
        [STEPS, {**OTHERS, "group_size": 3}],
    ],
)
def test_what_has_been_run_stays_as_it_is(tmp_path: Path, other: list[dict[str, Any]]) -> None:
    bench = Bench(tmp_path)
    train(bench, STEPS, OTHERS)
    with pytest.raises(ConfigError, match="other settings"):
        train(bench, *other, train__resume=True)
