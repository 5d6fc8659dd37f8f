"""How a notebook shows a report: the summary with a plot of the reward per step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from agl_core.types import Report
from agl_core.types.run import summary_lines

_WIDTH: Final = 480
_HEIGHT: Final = 160
_MARGIN: Final = 44
"""Pixels around the plot, for its labels."""


def show_reports() -> None:
    """Let IPython show reports by `report_html`; do nothing outside of it."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Report, report_html)


def report_html(report: Report) -> str:
    """Return the summary with a plot of the reward per step, for notebooks."""
    lines = "<br/>".join(escape(line) for line in summary_lines(report))
    rewards = [(step.step, step.reward) for step in report.steps if step.reward is not None]
    return f"<div><p>{lines}</p>{_plot(rewards) if rewards else ''}</div>"


def _plot(points: Sequence[tuple[int, float]]) -> str:
    """Return an SVG plot of values over steps; the ends of both axes have labels."""
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
