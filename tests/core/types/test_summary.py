"""How a report shows itself."""

import xml.etree.ElementTree as ET

import msgspec
import pytest

from agl_core.types import Estimate, Evaluation, Report, StepReport
from agl_core.types.run import RewardTrend, clock

SVG = "{http://www.w3.org/2000/svg}"
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


def svg_of(report):
    return ET.fromstring(report._repr_html_()).find(f".//{SVG}svg")


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


def test_a_notebook_shows_a_plot_of_the_reward():
    """G5: an SVG with a point per step, higher for more reward; texts are escaped."""
    svg = svg_of(REPORT)

    heights = [float(dot.get("cy")) for dot in svg.iter(f"{SVG}circle")]
    assert len(heights) == 3
    assert heights == sorted(heights, reverse=True)
    assert "run a&lt;b" in REPORT._repr_html_()
    assert {text.text for text in svg.iter(f"{SVG}text")} >= {"0.250", "0.750", "1", "3"}


@pytest.mark.parametrize("rewards", [[0.5], [0.5, 0.5]])
def test_a_flat_or_single_point_is_drawn(rewards):
    steps = [StepReport(step=n, steps=2, reward=r) for n, r in enumerate(rewards, start=1)]

    svg = svg_of(msgspec.structs.replace(REPORT, steps=steps))

    assert len(list(svg.iter(f"{SVG}circle"))) == len(rewards)


def test_a_report_without_steps_has_no_plot():
    assert svg_of(Report(run_id="r", directory="d")) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (61, "0:01:01"), (3725, "1:02:05")]
)
def test_clock(seconds, text):
    assert clock(seconds) == text
