import io
import sys

import msgspec
import pytest
from agl_progress._display import (
    LiveProgress,
    PlainProgress,
    RunView,
    progress,
    sparkline,
    step_line,
    tokens_per_s,
)
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agl_core.config import RunConfig
from agl_core.types import Report, StepReport
from tests.core.reports import EVALUATION, REPORT, STEPS


def terminal(encoding="utf-8"):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    return Console(file=file, force_terminal=True, width=100, color_system=None)


def shown(display, console):
    with console.capture() as captured:
        console.print(display.render())
    return captured.get()


def test_the_panel_shows_what_there_is(monkeypatch):
    console = terminal()
    display = LiveProgress(console)
    assert "starting" in shown(display, console)

    display.started(RunConfig(name="mine"))
    assert "mine" in shown(display, console)

    for step in STEPS:
        display.step(msgspec.structs.replace(step, channels={"facts": 0.1, "style": 0.9}))
    display.evaluation(EVALUATION)
    text = shown(display, console)

    for part in ("2/2", "0.500  ▁█", "200  (16 calls", "agent=3", "reward_unknown_call=2", "eta 0"):
        assert part in text
    for part in ("facts", "0.100", "style", "0.900", "0.500 [0.250, 0.750] n=8"):
        assert part in text


def test_a_console_without_unicode_gets_ascii():
    console = terminal("cp1252")
    display = LiveProgress(console)
    for step in STEPS:
        display.step(step)

    assert "0.500  _#" in shown(display, console)


def test_the_live_display_ends_with_the_summary():
    console = terminal()
    display = LiveProgress(console)

    with display.shown():
        display.started(RunConfig())
        display.finished(REPORT)

    console.file.flush()
    text = console.file.buffer.getvalue().decode()
    assert "weights agl_runs/run/checkpoints/2-é" in text


def test_what_takes_time_is_said_before_the_first_step():
    """G9: a run that is starting says what it does."""
    console, file = terminal(), io.StringIO()
    live, plain = LiveProgress(console), PlainProgress(Console(file=file))
    for display in (live, plain):
        display.stage("loading weights")
    assert "loading weights" in shown(live, console)
    assert file.getvalue() == "loading weights ...\n"
    live.started(RunConfig(name="mine"))
    assert "loading weights" in shown(live, console)
    live.step(STEPS[0])
    assert "loading weights" not in shown(live, console)


def test_a_score_is_shown_once():
    """G9: the end of a run does not repeat what was printed before; a report by itself has it."""
    console, file = terminal(), io.StringIO()
    live, plain = LiveProgress(console), PlainProgress(Console(file=file, width=200))
    with live.shown():
        for display in (live, plain):
            display.started(RunConfig())
            display.evaluation(EVALUATION)
            display.finished(REPORT)
    assert file.getvalue().count("0.500 [0.250") == 1
    console.file.flush()
    assert "score 0.500" not in console.file.buffer.getvalue().decode()
    assert "score 0.500" in str(REPORT)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "term", "kind"),
    [
        (Terminal(), "xterm", LiveProgress),
        (Terminal(), "dumb", PlainProgress),
        (io.StringIO(), "xterm", PlainProgress),
    ],
)
def test_the_display_is_chosen_by_the_terminal(monkeypatch, stream, term, kind):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", term)
    with progress(stream) as display:
        assert isinstance(display, kind)


def test_a_script_shows_its_run_on_standard_error(capsys):
    """G5: standard output stays the script's own."""
    with progress(sys.stderr) as display:
        display.step(STEPS[0])

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("step 1/2  reward 0.250")


def test_a_notebook_shows_its_run_as_lines_on_standard_output(capsys, monkeypatch):
    """G5: without ipywidgets, and not marked as an error."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # as ipykernel's is

    with progress(sys.stderr) as display:
        display.step(STEPS[0])

    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("step 1/2  reward 0.250")


def test_lines_are_neither_wrapped_nor_read_as_markup():
    file = io.StringIO()
    display = PlainProgress(Console(file=file, width=20))

    display.step(msgspec.structs.replace(STEPS[0], lost={"[red]a cause[/red]" * 5: 1}))

    assert file.getvalue().count("\n") == 1
    assert "[red]a cause[/red]" in file.getvalue()


def test_breaks_of_conversations_are_shown_and_explained():
    file, console = io.StringIO(), terminal()
    broken = msgspec.structs.replace(STEPS[0], breaks={"writer": {"thinking": 2}})
    plain, live = PlainProgress(Console(file=file, width=200)), LiveProgress(console)
    assert "breaks" not in shown(live, console)
    for display in (plain, live):
        display.step(broken)
    plain.finished(Report(run_id="r", directory="d", breaks=broken.breaks))

    assert "breaks writer:thinking=2" in file.getvalue()
    assert "writer: 2 prompts continued no earlier one: thinking was stripped" in file.getvalue()
    assert "writer:thinking=2" in shown(live, console)


def test_the_summary_of_a_run_without_checkpoint():
    file = io.StringIO()

    PlainProgress(Console(file=file)).finished(Report(run_id="r", directory="d"))

    assert "lost nothing" in file.getvalue()
    assert "no checkpoint" in file.getvalue()


def test_the_time_left_follows_the_last_steps():
    view = RunView()
    assert view.eta_s is None
    view.steps = [
        StepReport(step=number, steps=20, reward=0, wall_s=wall)
        for number, wall in enumerate([100, 1, 2, 3, 2, 2], start=1)
    ]

    assert view.eta_s == 14 * 2


def test_a_step_that_took_no_time_has_no_speed():
    assert tokens_per_s(StepReport(step=1, steps=1, reward=0, tokens=5)) == 0


@pytest.mark.parametrize(
    ("values", "curve"),
    [([], ""), ([1], "▄"), ([2, 2], "▄▄"), ([0, 1], "▁█"), ([-1, 0, 1], "▁▅█")],
)
def test_sparklines(values, curve):
    assert sparkline(values, width=10) == curve


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(1, 60), st.booleans())
def test_a_sparkline_fits_its_width(values, width, unicode):
    assert len(sparkline(values, width=width, unicode=unicode)) == min(len(values), width)


def test_a_long_curve_is_averaged():
    assert sparkline([0, 0, 1, 1], width=2) == "▁█"


def test_a_pipe_whose_reader_has_ended_stops_the_lines_and_not_the_run(caplog):
    """G5: progress is shown by default, so it must not end a run."""

    class Gone(io.StringIO):
        writes = 0

        def write(self, text):
            self.writes += 1
            raise BrokenPipeError("gone")

    file = Gone()
    display = PlainProgress(Console(file=file))
    for step in STEPS:
        display.step(step)
    assert file.writes == 1
    assert "Progress is not shown any more" in caplog.text


def test_a_step_without_rollouts_shows_no_reward():
    """A run of sft showed the reward 0.000."""
    step = StepReport(step=1, steps=2, reward=None, tokens=9, wall_s=1.0)
    console = terminal()
    display = LiveProgress(console)
    display.step(step)
    assert "reward" not in step_line(step, None)
    assert "reward" not in shown(display, console)
    assert display._view.rewards == []
