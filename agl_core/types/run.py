"""What a run did: updates, evaluations, losses, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final, Literal

import msgspec

from agl_core.types.breaks import MEANING
from agl_core.types.resources import Resources


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """The result of training one policy on one batch."""

    policy: str
    step: int
    version: int
    """Version of the weights that now serve."""
    metrics: dict[str, float] = {}
    rows: dict[str, int] = {}
    """Agent to the sequences of its calls that were trained on, as the engine laid them out."""
    lost: dict[str, int] = {}
    """Cause to what of the batch was not trained on, or was only put in to fill it up."""
    resources: Resources | None = None
    checkpoint: str | None = None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A mean over tasks with its 95 % interval."""

    mean: float
    low: float
    high: float
    n: int


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of the agents on a set of tasks; failed attempts stay in the denominator."""

    step: int
    score: Estimate
    channels: dict[str, Estimate] = {}
    pass_at_k: dict[int, Estimate] = {}
    """k to the unbiased estimate; a k larger than the samples per task is absent."""
    failed: dict[str, int] = {}
    """Failure kind to attempts."""
    lost: dict[str, int] = {}
    """Cause to model requests that are on no record or gave no answer, and attempts without calls."""
    wall_s: float = 0.0

    def __str__(self) -> str:
        return evaluation_line(self)


class Losses(msgspec.Struct, kw_only=True):
    """Everything that did not become training data, counted by cause."""

    counts: dict[str, int] = {}

    def add(self, cause: str, n: int = 1) -> None:
        if n:
            self.counts[cause] = self.counts.get(cause, 0) + n

    def merge(self, other: Losses) -> None:
        for cause, n in other.counts.items():
            self.add(cause, n)


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a run, as the progress line shows it and as it is stored."""

    step: int
    steps: int
    reward: float
    """Mean weighted return of the step's attempts, penalties included."""
    channels: dict[str, float] = {}
    rollouts: int = 0
    calls: int = 0
    tokens: int = 0
    """Sampled tokens."""
    failures: dict[str, int] = {}
    lost: dict[str, int] = {}
    breaks: dict[str, dict[str, int]] = {}
    """Trained agent to likely cause to calls whose prompt continued no earlier one of their run.
    They are trained all the same, on a path of their own."""
    rows: dict[str, int] = {}
    """Agent to the sequences of its calls that were trained on."""
    metrics: dict[str, float] = {}
    wall_s: float = 0.0


class RewardTrend(msgspec.Struct, frozen=True, kw_only=True):
    """How the reward moved over a run."""

    first: float
    """Mean over the first five steps; over the first half of a run of fewer than ten."""
    last: float
    """The same of the last ones: no step is in both, unless there is only one."""


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences that a run trained on."""

    by_agent: dict[str, int] = {}


class Report(msgspec.Struct, kw_only=True):
    """The outcome of a run: where the weights lie, what was reached, what was lost."""

    run_id: str
    directory: str
    steps: list[StepReport] = []
    evaluations: list[Evaluation] = []
    policies: dict[str, dict[str, Any]] = {}
    """Policy name to ``{"sha256_before", "sha256_after", "version", "path"}``."""
    lost: dict[str, int] = {}
    breaks: dict[str, dict[str, int]] = {}
    """Those of all steps."""
    calls: int = 0
    reward: RewardTrend | None = None
    """None before the first step."""
    rows: Rows = Rows()
    seconds_per_step: float | None = None
    """Median; None before the first step."""
    wall_s: float = 0.0
    best: str | None = None
    """Directory of the checkpoint with the best evaluation, or the last one without evaluations."""

    def summary(self) -> str:
        """What the run came to, in a few lines; ``print(report)`` shows the same."""
        return "\n".join(summary_lines(self))

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """The summary with a plot of the reward per step, where a notebook shows the report."""
        return report_html(self)


Severity = Literal["ok", "not checked", "warning", "error"]
"""``not checked``: it cannot be decided, which is not the same as ok."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at, what was measured, and what to do about it."""

    check: str
    """What was looked at, such as ``rewards.vary``; a plugin's begins with the plugin's name."""
    severity: Severity
    measured: str
    """One or two sentences with the numbers and names that were seen."""
    fix: str = ""
    """What to change; empty when there is nothing to do."""
    figures: dict[str, Any] = {}
    """The numbers and names of `measured` for programs; any JSON values."""

    @classmethod
    def of(
        cls, check: str, severity: Severity, measured: str, *, fix: str, figures: dict[str, Any]
    ) -> Finding:
        """A finding that keeps its fix only where there is something to do.

        So a check can state the fix before it knows what it finds.
        """
        return cls(
            check=check,
            severity=severity,
            measured=measured,
            fix="" if severity == "ok" else fix,
            figures=figures,
        )


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a trial run of a few tasks showed."""

    run_id: str
    directory: str
    """Where the records of the trial lie, apart from those of the run."""
    tasks: int
    samples: int
    """Attempts per task."""
    calls: int
    """Model calls that were recorded."""
    findings: list[Finding]
    wall_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether any finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)


_WIDTH: Final = 480
_HEIGHT: Final = 160
_MARGIN: Final = 44
"""Pixels around the plot, for its labels."""


def evaluation_line(evaluation: Evaluation) -> str:
    """One evaluation in plain words."""
    parts = [f"eval at step {evaluation.step}: {estimate(evaluation.score)}"]
    parts += [f"{name} {estimate(value)}" for name, value in sorted(evaluation.channels.items())]
    parts += [f"pass@{k} {estimate(value)}" for k, value in sorted(evaluation.pass_at_k.items())]
    if evaluation.failed:
        parts.append(f"failed {counts(evaluation.failed)}")
    if evaluation.lost:
        parts.append(f"lost {counts(evaluation.lost)}")
    return "  ".join(parts)


def summary_lines(report: Report, *, scores: bool = True) -> list[str]:
    """What a run came to; without its scores where they have been shown."""
    size = f"{len(report.steps)} steps, {report.calls} calls"
    lines = [f"run {report.run_id}: {size}, {clock(report.wall_s)}"]
    if scores and report.evaluations:
        first, last = report.evaluations[0], report.evaluations[-1]
        lines.append(f"score {estimate(first.score)} -> {estimate(last.score)}")
    if report.reward is not None:
        lines.append(f"reward {report.reward.first:.3f} -> {report.reward.last:.3f}")
    lines.append(f"lost {counts(report.lost) or 'nothing'}")
    for agent, causes in sorted(report.breaks.items()):
        lines += [
            f"{agent}: {count} prompts continued no earlier one: {MEANING.get(cause, cause)}"
            for cause, count in sorted(causes.items())
        ]
    lines.append(f"weights {report.best or 'none: no checkpoint was written'}")
    return lines


def report_html(report: Report) -> str:
    """The summary with a plot of the reward per step, as a notebook shows it."""
    lines = "<br/>".join(escape(line) for line in summary_lines(report))
    rewards = [(step.step, step.reward) for step in report.steps]
    return f"<div><p>{lines}</p>{_plot(rewards) if rewards else ''}</div>"


def estimate(value: Estimate) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}] n={value.n}"


def counts(values: Mapping[str, int]) -> str:
    return " ".join(f"{cause}={count}" for cause, count in sorted(values.items()))


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _plot(points: Sequence[tuple[int, float]]) -> str:
    """An SVG of values over steps; the ends of both axes are labelled."""
    steps, values = [step for step, _ in points], [value for _, value in points]
    low, high = min(values), max(values)
    across, up = (steps[-1] - steps[0]) or 1, (high - low) or 1.0

    def place(step: int, value: float) -> tuple[float, float]:
        x = _MARGIN + (step - steps[0]) / across * (_WIDTH - 2 * _MARGIN)
        share = (value - low) / up if high > low else 0.5
        return x, _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN)

    placed = [place(step, value) for step, value in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>step {step}: {value:.3f}</title></circle>'
        for (x, y), (step, value) in zip(placed, points, strict=True)
    )
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    labels = [
        (_MARGIN - 6, bottom, "end", f"{low:.3f}"),
        (_MARGIN, bottom + 18, "middle", str(steps[0])),
        (right, bottom + 18, "middle", str(steps[-1])),
        (_WIDTH // 2, bottom + 34, "middle", "step"),
        (_MARGIN, _MARGIN - 14, "start", "reward"),
    ]
    if high > low:
        labels.append((_MARGIN - 6, _MARGIN, "end", f"{high:.3f}"))
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
        for x, y, anchor, text in labels
    )
    axes = f"M{_MARGIN},{_MARGIN} V{bottom} H{right}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Reward per step" '
        f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="currentColor">'
        f'<path d="{axes}" fill="none" stroke="currentColor" opacity="0.4"/>'
        f'<polyline points="{path}" fill="none" stroke="#1f77b4" stroke-width="2"/>'
        f'<g fill="#1f77b4">{dots}</g>{texts}</svg>'
    )
