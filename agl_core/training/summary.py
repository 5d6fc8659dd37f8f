"""A run's steps in a few numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, TypedDict

from agl_core.types import StepReport
from agl_core.types.run import RewardTrend, Rows

_SPAN: Final = 5
"""Most steps at each end of a run whose rewards are averaged."""


class Summary(TypedDict):
    """Fields of a `Report`."""

    reward: RewardTrend | None
    rows: Rows
    seconds_per_step: float | None


def summary(steps: Sequence[StepReport]) -> Summary:
    """How the reward moved, whose calls were trained on, and how long a step took."""
    rows: dict[str, int] = {}
    for step in steps:
        for agent, count in step.rows.items():
            rows[agent] = rows.get(agent, 0) + count
    rewards = [step.reward for step in steps]
    span = min(_SPAN, max(len(steps) // 2, 1))
    return Summary(
        reward=RewardTrend(first=_mean(rewards[:span]), last=_mean(rewards[-span:]))
        if rewards
        else None,
        rows=Rows(by_agent=dict(sorted(rows.items()))),
        seconds_per_step=statistics.median(step.wall_s for step in steps) if steps else None,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
