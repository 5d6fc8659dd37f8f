"""What a run came to, as text and as a page: how `Report` and `Evaluation` show themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from agl_core.types.breaks import TOLD

if TYPE_CHECKING:
    from agl_core.types.run import Estimate, Evaluation, Report

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
            f"{agent}: {count} prompts continued no earlier one: {TOLD.get(cause, cause)}"
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
