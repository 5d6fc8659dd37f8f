"""How a notebook shows a report."""

import xml.etree.ElementTree as ET

import msgspec
import pytest
from agl_progress._notebook import report_html, show_reports
from agl_progress.plugin import agl_run_finished

import agl_core as agl
from agl_core.app import Report as OwnReport
from agl_core.types import Report, StepReport
from tests.core.reports import EVALUATION
from tests.core.types.test_summary import REPORT

SVG = "{http://www.w3.org/2000/svg}"


def svg_of(report):
    return ET.fromstring(report_html(report)).find(f".//{SVG}svg")


def test_a_notebook_shows_a_plot_of_the_reward():
    """G5: an SVG with a point per step, higher for more reward; texts are escaped."""
    svg = svg_of(msgspec.structs.replace(REPORT, evaluations=[]))

    heights = [float(dot.get("cy")) for dot in svg.iter(f"{SVG}circle")]
    assert len(heights) == 3
    assert heights == sorted(heights, reverse=True)
    assert "run a&lt;b" in report_html(REPORT)
    assert {text.text for text in svg.iter(f"{SVG}text")} >= {"0.250", "0.750", "1", "3"}


@pytest.mark.parametrize("rewards", [[0.5], [0.5, 0.5]])
def test_a_flat_or_single_point_is_drawn(rewards):
    steps = [StepReport(step=n, steps=2, reward=r) for n, r in enumerate(rewards, start=1)]

    svg = svg_of(msgspec.structs.replace(REPORT, steps=steps))

    assert len(list(svg.iter(f"{SVG}circle"))) == len(rewards)


def test_a_report_without_steps_has_no_plot():
    assert svg_of(Report(run_id="r", directory="d")) is None


def test_a_notebook_shows_the_report_of_a_run_in_this_way():
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell.instance()
    try:
        agl_run_finished()
        shown = shell.display_formatter.formatters["text/html"](OwnReport.of(REPORT))
    finally:
        shell.clear_instance()

    assert shown == report_html(REPORT)


def test_outside_of_a_notebook_nothing_is_prepared():
    show_reports()


def test_a_report_is_drawn_with_channels_and_scores(tmp_path):
    steps = [
        StepReport(step=n, steps=2, reward=0.5 * n, channels={"a<b": 0.1, "style": 0.2 * n})
        for n in (1, 2)
    ]
    report = OwnReport(run_id="r", directory="d", steps=steps, evaluations=[EVALUATION])

    drawn = report.plot()
    drawn.save(tmp_path / "plot.svg")

    svg = ET.fromstring((tmp_path / "plot.svg").read_text(encoding="utf-8"))
    assert [name.text for name in svg.iter(f"{SVG}tspan")] == ["reward", "a<b", "style", "score"]
    assert len(list(svg.iter(f"{SVG}circle"))) == 6
    titles = {title.text for title in svg.iter(f"{SVG}title")}
    assert {"step 2: reward 1.000", "step 2: score 0.500 [0.250, 0.750] n=8"} <= titles
    assert drawn._repr_svg_() == drawn.svg


def test_scores_of_one_step_are_drawn_apart():
    found = [EVALUATION, msgspec.structs.replace(EVALUATION, phase=1)]
    report = OwnReport(run_id="r", directory="d", steps=[], evaluations=found)
    bars = ET.fromstring(report.plot().svg).findall(f"{SVG}path/{SVG}title/..")
    assert [bar.find(f"{SVG}title").text.partition(":")[0] for bar in bars] == [
        "step 2",
        "step 2, phase 1",
    ]
    assert len({bar.get("d") for bar in bars}) == 2


def test_a_report_cannot_be_drawn_without_a_display(monkeypatch):
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "progress")
    with pytest.raises(agl.ConfigError, match="No display"):
        OwnReport(run_id="r", directory="d").plot()
