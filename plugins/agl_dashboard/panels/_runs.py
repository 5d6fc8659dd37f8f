"""The page of all runs."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from agl_dashboard._history import History
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._rows import rows_file, rows_kind
from agl_dashboard._sources import ShownRun

_POINTS = 60
_WIDTH, _HEIGHT = 120.0, 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run in the list."""

    name: str
    history: History | None
    """None for a store without a directory."""

    @property
    def line(self) -> str:
        return sparkline(self.history.curve) if self.history is not None else ""


class RunsPanel:
    """Every run below the folder, newest first."""

    title = "Runs"
    order = 0
    scope: Literal["all", "run"] = "all"

    async def page(self, view: View) -> Page | PlainAnswer:
        rows = await asyncio.to_thread(_rows, view)
        sort = view.query.get("sort", "time")
        rows.sort(key=lambda row: row.name)
        rows.sort(key=_KEYS.get(sort, _changed), reverse=True)
        kind = rows_kind(view.rest, "runs")
        if kind is not None:
            return rows_file("runs", kind, map(_plain, rows))
        body = view.template(
            "runs.html", view=view, rows=rows, sort=sort, target=view.sources.target
        )
        return Page(title="Runs", body=body, scripts=("runs",))


def make_panel() -> RunsPanel:
    return RunsPanel()


def _plain(row: Row) -> dict[str, Any]:
    history = row.history or History()
    score = history.best.score if history.best is not None else None
    return {
        "run": row.name,
        "state": history.status,
        "step": history.step,
        "steps": history.planned or None,
        "reward": history.curve[-1] if history.curve else None,
        "score": score.mean if score is not None else None,
        "score_low": score.low if score is not None else None,
        "score_high": score.high if score is not None else None,
        "changed_at": history.updated_at or None,
    }


def _changed(row: Row) -> float:
    return row.history.updated_at if row.history is not None else 0.0


def _last_reward(row: Row) -> float:
    return row.history.curve[-1] if row.history is not None and row.history.curve else -math.inf


def _best_score(row: Row) -> float:
    best = row.history.best if row.history is not None else None
    return best.score.mean if best is not None else -math.inf


_KEYS: Final = {"time": _changed, "reward": _last_reward, "score": _best_score}


def _rows(view: View) -> list[Row]:
    return [Row(name=each.name, history=_history(each)) for each in view.sources.all()]


def _history(source: ShownRun) -> History | None:
    return source.files.refresh() if source.files is not None else None


def sparkline(values: list[float]) -> str:
    """Return the points of a small curve, for the ``points`` of an SVG polyline."""
    if len(values) < 2:  # noqa: PLR2004  a line has two ends
        return ""
    step = max(len(values) / _POINTS, 1.0)
    chosen = [values[int(at * step)] for at in range(int(len(values) / step))]
    least, most = min(chosen), max(chosen)
    span = (most - least) or 1.0
    across = _WIDTH / max(len(chosen) - 1, 1)
    return " ".join(
        f"{at * across:.1f},{_HEIGHT - 2 - (value - least) / span * (_HEIGHT - 4):.1f}"
        for at, value in enumerate(chosen)
    )
