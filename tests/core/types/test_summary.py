"""How a report shows itself."""

import pytest

from agl_core.types import Estimate, Evaluation, Report, StepReport
from agl_core.types.run import RewardTrend, clock

REPORT = Report(
    run_id="a<b",
    directory="d",
    steps=[StepReport(step=n, steps=3, reward=n / 4) for n in (1, 2, 3)],
    evaluations=[
        Evaluation(step=step, score=Estimate(mean=mean, low=0, high=1, n=8), failed={"agent": 1})
        for step, mean in ((0, 0.25), (3, 0.75))
    ],
    reward=RewardTrend(first=0.25, last=0.75),
    lost={"late": 3},
    breaks={"writer": {"thinking": 2}},
    calls=32,
    wall_s=61,
    best="d/checkpoints/3",
)


def test_a_report_prints_as_a_summary():
    """G5: a few lines instead of 4 kB on one."""
    assert str(REPORT) == REPORT.summary()
    assert REPORT.summary().splitlines() == [
        "run a<b: 3 steps, 32 calls, 0:01:01",
        "score 0.250 [0.000, 1.000] n=8 -> 0.750 [0.000, 1.000] n=8",
        "reward 0.250 -> 0.750",
        "lost late=3",
        "writer: 2 prompts continued no earlier one: thinking was stripped from the history",
        "weights d/checkpoints/3",
    ]
    assert "StepReport" in repr(REPORT)


def test_an_evaluation_prints_as_its_score():
    assert str(REPORT.evaluations[0]) == (
        "eval at step 0: 0.250 [0.000, 1.000] n=8  failed agent=1"
    )


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (61, "0:01:01"), (3725, "1:02:05")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text
