"""Progress display of a run: a panel on a terminal, one line per step in pipes and files."""

from __future__ import annotations

import logging
import os
import statistics
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from agl_core.clocks import monotonic
from agl_core.interfaces import Observer
from agl_core.types import Evaluation, Report, StepReport
from agl_core.types.run import clock, counts, evaluation_line, sum_breaks, summary_lines

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from agl_progress._notebook import Plot

_log = logging.getLogger(__name__)

_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_ASCII: Final = "_.-:=+*#"
_RECENT: Final = 5
_CURVE: Final = 40
FILE_WIDTH: Final = 240
"""Width if the output is not a terminal, so that lines are not cut to 80 columns."""


class ProgressDisplay:
    """The display of runs: shows one live, and draws its report."""

    @contextmanager
    def __call__(self, stream: TextIO) -> Generator[Observer, None, None]:
        """Yield an observer that shows a run on a stream; in a notebook, on standard output.

        On a terminal the display updates in place; otherwise every step is one line of text.
        """
        target = console(stream)
        if not target.is_terminal or target.is_dumb_terminal:
            yield PlainProgress(target)
            return
        display = LiveProgress(target)
        with display.shown():
            yield display

    def plot(self, report: Report) -> Plot:
        """Return a picture of a report's rewards and scores."""
        from agl_progress._notebook import plot  # noqa: PLC0415  after the run

        return plot(report)


progress: Final = ProgressDisplay()


def console(stream: TextIO) -> Console:
    """Return the console of a stream.

    In a notebook it is standard output, because a notebook marks standard error as an error.
    """
    from rich.console import Console  # noqa: PLC0415

    if Console().is_jupyter:
        # A notebook's stream claims to be a terminal but cannot move the cursor, and rich's own
        # display needs ipywidgets: plain lines work in all notebooks.
        return Console(
            file=sys.stdout,
            highlight=False,
            width=FILE_WIDTH,
            force_jupyter=False,
            force_terminal=False,
        )
    width = None if stream.isatty() or "COLUMNS" in os.environ else FILE_WIDTH
    return Console(file=stream, highlight=False, width=width)


@dataclass(slots=True)
class RunView:
    """The data of a run for its display."""

    name: str = ""
    stage: str = ""
    """The current work between steps; empty while steps are shown."""
    steps: list[StepReport] = field(default_factory=list[StepReport])
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])

    def add(self, report: StepReport) -> None:
        """Add a step; a run that was resumed repeats steps, and the last report of each counts."""
        self.stage = ""
        self.steps = [step for step in self.steps if step.step < report.step] + [report]

    def score(self, evaluation: Evaluation) -> None:
        """Add an evaluation; a run that was resumed repeats them, as it does steps."""
        self.stage = ""
        place = (evaluation.step, evaluation.phase)
        self.evaluations = [
            each for each in self.evaluations if (each.step, each.phase) != place
        ] + [evaluation]

    @property
    def last(self) -> StepReport | None:
        return self.steps[-1] if self.steps else None

    @property
    def eta_s(self) -> float | None:
        """Estimated seconds left, from the median of the last steps; None before the first."""
        if self.last is None:
            return None
        pace = statistics.median(step.wall_s for step in self.steps[-_RECENT:])
        return pace * max(self.last.steps - self.last.step, 0)

    @property
    def rewards(self) -> list[float]:
        return [step.reward for step in self.steps if step.reward is not None]

    def total(self, kind: str) -> dict[str, int]:
        """Sum ``failures`` or ``lost`` of all steps, by cause."""
        totals: dict[str, int] = {}
        for step in self.steps:
            counts: dict[str, int] = getattr(step, kind)
            for cause, count in counts.items():
                totals[cause] = totals.get(cause, 0) + count
        return totals


class Display(Protocol):
    """A display of a run of this process, or of another one that is watched."""

    under_way: str
    """The rollouts under way; empty if they are not shown."""

    def begin(self, name: str, steps: int, *, began: float) -> None:
        """Show the run's name; `began` is a reading of the monotonic clock."""
        ...

    def stage(self, doing: str) -> None: ...
    def step(self, report: StepReport) -> None: ...
    def evaluation(self, evaluation: Evaluation) -> None: ...


class PlainProgress:
    """One line per step and evaluation."""

    def __init__(self, target: Console) -> None:
        self.under_way = ""
        self._console = target
        self._view = RunView()

    def started(self, config: Any) -> None:
        self.begin(config.name, config.train.steps, began=monotonic())

    def begin(self, name: str, steps: int, *, began: float) -> None:
        del began
        self._say(f"run {name}: {steps} steps" if steps else f"run {name}")

    def stage(self, doing: str) -> None:
        self._say(f"{doing} ...")

    def step(self, report: StepReport) -> None:
        self._view.add(report)
        self._say(step_line(report, self._view.eta_s))

    def evaluation(self, evaluation: Evaluation) -> None:
        self._view.score(evaluation)
        self._say(evaluation_line(evaluation))

    def finished(self, report: Report) -> None:
        for line in summary_lines(report, scores=not self._view.evaluations):
            self._say(line)

    def _say(self, line: str) -> None:
        if self._console.quiet:
            return
        try:
            # Console.print would end the process if the reader of the pipe has ended.
            self._console.file.write(f"{line}\n")
            self._console.file.flush()
        except OSError as error:
            self._console.quiet = True
            _log.warning("Progress is not shown any more: writing it failed (%s)", error)


class LiveProgress:
    """A panel that updates in place."""

    def __init__(self, target: Console) -> None:
        self.under_way = ""
        self._console = target
        self._view = RunView()
        self._began = monotonic()

    @contextmanager
    def shown(self) -> Generator[None, None, None]:
        """Draw inside this context; the last state stays on the screen."""
        from rich.live import Live  # noqa: PLC0415

        with Live(get_renderable=self.render, console=self._console, refresh_per_second=4):
            yield

    def started(self, config: Any) -> None:
        self.begin(config.name, config.train.steps, began=monotonic())

    def begin(self, name: str, steps: int, *, began: float) -> None:
        del steps  # every step says how many there are
        self._view.name = name
        self._began = began

    def stage(self, doing: str) -> None:
        self._view.stage = doing

    def step(self, report: StepReport) -> None:
        self._view.add(report)

    def evaluation(self, evaluation: Evaluation) -> None:
        self._view.score(evaluation)

    def finished(self, report: Report) -> None:
        for line in summary_lines(report, scores=not self._view.evaluations):
            self._console.print(line, markup=False, soft_wrap=True)

    def render(self) -> RenderableType:
        """Return the current panel."""
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column()
        for label, value in self._rows():
            grid.add_row(label, value if not isinstance(value, str) else Text(value))
        return grid

    def _rows(self) -> list[tuple[str, RenderableType]]:
        view, last = self._view, self._view.last
        elapsed = clock(monotonic() - self._began)
        rows: list[tuple[str, RenderableType]] = []
        if last is None and view.evaluations:
            rows.append(("time", elapsed))
        elif last is None:
            rows.append(("run", f"{view.name or 'starting'}  {elapsed}"))
        else:
            unicode = self._console.encoding.lower().startswith("utf")
            curve = sparkline(view.rewards, width=_CURVE, unicode=unicode)
            rows.append(("step", self._bar(last, elapsed)))
            rows += [] if last.reward is None else [("reward", f"{last.reward:.3f}  {curve}")]
            rows += [
                ("tokens/s", f"{tokens_per_s(last):,.0f}  ({last.calls} calls last step)"),
                ("failures", counts(view.total("failures")) or "none"),
                ("lost", counts(view.total("lost")) or "none"),
            ]
            broken = _breaks(sum_breaks(step.breaks for step in view.steps))
            rows += [("breaks", counts(broken))] if broken else []
            rows += [(name, f"{value:.3f}") for name, value in _channels(last)]
        rows += [("now", view.stage)] if view.stage else []
        rows += [("rollouts", self.under_way)] if self.under_way else []
        rows += [("score", evaluation_line(found)) for found in view.evaluations[-2:]]
        return rows

    def _bar(self, last: StepReport, elapsed: str) -> RenderableType:
        from rich.progress_bar import ProgressBar  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        eta = self._view.eta_s
        row = Table.grid(padding=(0, 1))
        row.add_row(
            f"{last.step}/{last.steps}",
            ProgressBar(total=last.steps, completed=last.step, width=30),
            f"{elapsed}  eta {clock(eta)}" if eta is not None else elapsed,
        )
        return row


def step_line(report: StepReport, eta_s: float | None) -> str:
    """Return one step as a line of text."""
    parts = [f"step {report.step}/{report.steps}"]
    parts += [] if report.reward is None else [f"reward {report.reward:.3f}"]
    parts += [f"{name} {value:.3f}" for name, value in _channels(report)]
    parts += [f"tokens/s {tokens_per_s(report):.0f}", f"rollouts {report.rollouts}"]
    for label, values in (("failures", report.failures), ("lost", report.lost)):
        if values:
            parts.append(f"{label} {counts(values)}")
    if report.breaks:
        parts.append(f"breaks {counts(_breaks(report.breaks))}")
    if eta_s is not None:
        parts.append(f"eta {clock(eta_s)}")
    return "  ".join(parts)


def sparkline(values: Sequence[float], *, width: int, unicode: bool = True) -> str:
    """Return a curve as one line of text; more than `width` values are averaged in equal parts."""
    if not values:
        return ""
    if len(values) > width:
        edges = [round(at * len(values) / width) for at in range(width + 1)]
        values = [statistics.fmean(values[a:b]) for a, b in pairwise(edges)]
    low, high = min(values), max(values)
    levels = _BLOCKS if unicode else _ASCII
    top = len(levels) - 1
    span = high - low
    return "".join(levels[round((v - low) / span * top) if span else top // 2] for v in values)


def tokens_per_s(report: StepReport) -> float:
    return report.tokens / report.wall_s if report.wall_s > 0 else 0.0


def _channels(report: StepReport) -> list[tuple[str, float]]:
    """Return the channels to show; a single channel equals the reward and is left out."""
    return sorted(report.channels.items()) if len(report.channels) > 1 else []


def _breaks(found: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the numbers of breaks by ``agent:cause``."""
    return {
        f"{agent}:{cause}": count
        for agent, causes in found.items()
        for cause, count in causes.items()
    }
