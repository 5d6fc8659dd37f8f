"""A run's steps in a few numbers."""

from __future__ import annotations

import pytest

from agl_core.training.loop import summary
from agl_core.types import Estimate, Report, StepReport
from agl_core.types.run import PromptReport, RewardTrend, RowCounts, summary_lines


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


def test_the_lines_of_a_run_say_what_it_learned() -> None:
    score = Estimate(mean=0.5, low=0.25, high=0.75, n=8)
    tuned = PromptReport(text="Hi", before=score, after=score)
    steps = [StepReport(step=1, steps=1, reward=None)]
    weights = Report(run_id="r", directory="d", steps=steps, calls=3, best="d/1")
    prompts = Report(
        run_id="r",
        directory="d",
        prompts={"a": tuned, "b": PromptReport(text="Ho")},
        rollouts=7,
        editor_calls=2,
        best="d/2",
    )
    assert summary_lines(weights) == [
        "run r: 1 steps, 3 calls, 0:00:00",
        "lost nothing",
        "weights d/1",
    ]
    assert summary_lines(prompts) == [
        "run r: 7 rollouts, 2 editor calls, 0:00:00",
        "prompt a 0.500 [0.250, 0.750] n=8 -> 0.500 [0.250, 0.750] n=8",
        "lost nothing",
        "prompts d/2",
    ]
