"""A run's steps in a few numbers."""

from __future__ import annotations

from agl_core.training.in_short import in_short
from agl_core.types import StepReport
from agl_core.types.run import RewardTrend, Rows


def test_no_step_has_no_trend() -> None:
    assert in_short([]) == {"reward": None, "rows": Rows(), "seconds_per_step": None}


def test_ends_are_averaged_over_five_steps_and_rows_are_summed() -> None:
    steps = [
        StepReport(step=index, steps=12, reward=float(index), rows={"b": 2, "a": 1}, wall_s=wall)
        for index, wall in enumerate([9.0, *[1.0] * 11])
    ]
    short = in_short(steps)
    assert short["reward"] == RewardTrend(first=2.0, last=9.0)
    assert list(short["rows"].by_agent.items()) == [("a", 12), ("b", 24)]
    assert short["seconds_per_step"] == 1.0


def test_fewer_steps_than_five_are_averaged_as_they_are() -> None:
    steps = [StepReport(step=0, steps=2, reward=1.0), StepReport(step=1, steps=2, reward=2.0)]
    assert in_short(steps)["reward"] == RewardTrend(first=1.5, last=1.5)
