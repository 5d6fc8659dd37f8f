"""How a notebook shows a report: the summary with a plot of its rewards and scores."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from agl_core.types import Evaluation, Report
from agl_core.types.run import estimate, summary_lines

_WIDTH: Final = 480
_HEIGHT: Final = 160
_MARGIN: Final = 44
"""Pixels around the plot, for its labels."""
_COLOURS: Final = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#17becf")
"""Of the reward and of its channels."""
_SCORE: Final = "#ff7f0e"
_APART: Final = 10
"""Pixels between the scores of one step."""

Point = tuple[float, float]


def show_reports() -> None:
    """Let IPython show reports by `report_html`; do nothing outside of it."""
    module: Any = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Report, report_html)


def report_html(report: Report) -> str:
    """Return the summary with a plot of the rewards per step, for notebooks."""
    lines = "<br/>".join(escape(line) for line in summary_lines(report))
    return f"<div><p>{lines}</p>{plot(report).svg}</div>"


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture that a notebook shows."""

    svg: str
    """The picture as SVG; empty if there is nothing to draw."""

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write the picture to an ``.svg`` file.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(self.svg, encoding="utf-8")


def plot(report: Report) -> Plot:
    """Draw the reward per step, its channels if there are several, and the scores with intervals."""
    rewards = [(step.step, step.reward) for step in report.steps if step.reward is not None]
    curves = {"reward": rewards}
    names = {name for step in report.steps for name in step.channels}
    for name in sorted(names) if len(names) > 1 else ():
        curves[name] = [(s.step, s.channels[name]) for s in report.steps if name in s.channels]
    return Plot(
        _svg({name: points for name, points in curves.items() if points}, report.evaluations)
    )


def _svg(curves: Mapping[str, Sequence[Point]], evaluations: Sequence[Evaluation]) -> str:
    """Return curves and scores over steps; the ends of both axes have labels."""
    scores = [(found.step, found.score) for found in evaluations]
    steps = [step for points in curves.values() for step, _ in points] + [
        step for step, _ in scores
    ]
    values = [value for points in curves.values() for _, value in points]
    values += [end for _, score in scores for end in (score.low, score.mean, score.high)]
    if not values:
        return ""
    first, last, low, high = min(steps), max(steps), min(values), max(values)
    across, up = (last - first) or 1, (high - low) or 1.0

    def place(step: float, value: float) -> Point:
        x = _MARGIN + (step - first) / across * (_WIDTH - 2 * _MARGIN)
        share = (value - low) / up if high > low else 0.5
        return x, _HEIGHT - _MARGIN - share * (_HEIGHT - 2 * _MARGIN)

    parts = [_axes(first, last, low, high)]
    for (name, points), colour in zip(curves.items(), cycle(_COLOURS), strict=False):
        placed = [place(step, value) for step, value in points]
        parts.append(_curve(name, points, placed, colour))
    drawn: Counter[int] = Counter()
    for found in evaluations:
        step, score = found.step, found.score
        (x, y), (_, top), (_, foot) = (
            place(step, each) for each in (score.mean, score.high, score.low)
        )
        x += _APART * drawn[step]  # a prompt phase is no step
        drawn[step] += 1
        phase = "" if found.phase is None else f", phase {found.phase}"
        parts.append(
            f'<path d="M{x:.1f},{foot:.1f} V{top:.1f} M{x - 4:.1f},{y:.1f} H{x + 4:.1f}" stroke="{_SCORE}" '
            f'stroke-width="2"><title>step {step}{phase}: score {estimate(score)}</title></path>'
        )
    names = [*zip(curves, cycle(_COLOURS), strict=False), *([("score", _SCORE)] if scores else [])]
    parts.append(_legend(names))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="Reward per step" '
        f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )


def _axes(first: float, last: float, low: float, high: float) -> str:
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    labels = [
        (_MARGIN - 6, bottom, "end", f"{low:.3f}"),
        (_MARGIN, bottom + 18, "middle", f"{first:g}"),
        (right, bottom + 18, "middle", f"{last:g}"),
        (_WIDTH // 2, bottom + 34, "middle", "step"),
    ]
    if high > low:
        labels.append((_MARGIN - 6, _MARGIN, "end", f"{high:.3f}"))
    texts = "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'
        for x, y, anchor, text in labels
    )
    axes = f"M{_MARGIN},{_MARGIN} V{bottom} H{right}"
    return f'<path d="{axes}" fill="none" stroke="currentColor" opacity="0.4"/>{texts}'


def _curve(name: str, points: Sequence[Point], placed: Sequence[Point], colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"><title>step {step:g}: {escape(name)} {value:.3f}</title>'
        "</circle>"
        for (x, y), (step, value) in zip(placed, points, strict=True)
    )
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        f'<g fill="{colour}">{dots}</g>'
    )


def _legend(names: Sequence[tuple[str, str]]) -> str:
    """Return the names of what is drawn, in its colours."""
    spans = "".join(
        f'<tspan fill="{colour}" dx="8">{escape(name)}</tspan>' for name, colour in names
    )
    return f'<text x="{_MARGIN - 8}" y="{_MARGIN - 14}">{spans}</text>'
