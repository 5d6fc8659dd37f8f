"""A run's steps in a few numbers."""

from __future__ import annotations

import pytest

from agl_core.training.loop import summary
from agl_core.types import StepReport
from agl_core.types.run import RewardTrend, RowCounts


def test_no_step_has_no_trend() -> None:
    assert summary([]) == {"reward": None, "rows": RowCounts(), "seconds_per_step": None}


def test_ends_are_averaged_over_five_steps_and_rows_are_summed() -> None:
    steps = [
        StepReport(step=index, steps=12, reward=float(index), rows={"b": 2, "a": 1}, wall_s=wall)
        for index, wall in enumerate([9.0, *[1.0] * 11])
    ]
    short = summary(steps)
    assert short["reward"] == RewardTrend(first=2.0, last=9.0)
    assert list(short["rows"].by_agent.items()) == [("a", 12), ("b", 24)]
    assert short["seconds_per_step"] == 1.0


@pytest.mark.parametrize(
    ("rewards", "first", "last"),
    [
        ([1.0], 1.0, 1.0),
        ([1.0, 2.0], 1.0, 2.0),
        ([1.0, 5.0, 2.0], 1.0, 2.0),
        ([0.0, 0.5, 1.0, 2.0], 0.25, 1.5),
        ([float(index) for index in range(9)], 1.5, 6.5),
        ([float(index) for index in range(10)], 2.0, 7.0),
    ],
)
def test_the_ends_of_a_short_run_share_no_step(
    rewards: list[float], first: float, last: float
) -> None:
    """E3: a run of four steps that improves has a last reward above its first."""
    steps = [
        StepReport(step=index, steps=len(rewards), reward=reward)
        for index, reward in enumerate(rewards)
    ]
    assert summary(steps)["reward"] == RewardTrend(first=first, last=last)
