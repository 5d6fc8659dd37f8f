"""The page that compares: curves of several runs, two evaluations task by task."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any, Final, Literal

import msgspec
from agl_reading import Cursor, RolloutRow, RowFilter, RowQuery

from agl_core.errors import ConfigError
from agl_core.types import Mode
from agl_dashboard._history import (
    EvaluationPlace,
    History,
    evaluation_text,
    parse_place,
    place_text,
)
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._rows import rows_file, rows_kind
from agl_dashboard._sources import ShownRun
from agl_dashboard.panels._overview import thinned

_MOST_ROWS: Final = 20_000
_PIECE: Final = 1000
_SHOWN: Final = 500
_Z: Final = NormalDist().inv_cdf(0.975)
_CURVES: Final = {
    "reward": "Reward",
    "score": "Held-out score",
    "loss": "Loss",
    "entropy": "Entropy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One evaluation: a run and the place at which it was made."""

    source: ShownRun
    place: EvaluationPlace
    version: int | None
    """Version of the resources of its rollouts; None if unknown."""

    @property
    def text(self) -> str:
        return f"{self.source.name}@{place_text(self.place)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """One task on both sides."""

    task: str
    a: float
    b: float
    row_a: RolloutRow
    row_b: RolloutRow

    @property
    def difference(self) -> float:
        return self.b - self.a


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """All tasks of both sides."""

    pairs: list[TaskPair]
    """Greatest differences first."""
    only_a: int
    only_b: int
    mean: float
    half: float
    """Half the width of the 95 % interval of the mean difference."""

    @property
    def wins(self) -> int:
        return sum(each.difference > 0 for each in self.pairs)

    @property
    def losses(self) -> int:
        return sum(each.difference < 0 for each in self.pairs)


class ComparePanel:
    """Curves of the chosen runs; wins and losses between two evaluations."""

    title = "Compare"
    order = 5
    scope: Literal["all", "run"] = "all"

    async def page(self, view: View) -> Page | PlainAnswer:
        names = view.lists.get("run", [])
        sources = await asyncio.to_thread(view.sources.all)
        histories = await asyncio.to_thread(_histories, sources)
        if view.rest == "data.json":
            return _data({name: each for name, each in histories.items() if name in names})
        a, b = _side(view, "a"), _side(view, "b")
        outcome = await _outcome(a, b) if a is not None and b is not None else None
        kind = rows_kind(view.rest, "tasks")
        if kind is not None:
            return rows_file("tasks", kind, map(_plain, outcome.pairs if outcome else []))
        body = view.template(
            "compare.html",
            view=view,
            names=[name for name in names if name in histories],
            source="/compare/data.json?" + _query(names),
            curves=_CURVES,
            choices=[
                (f"{name}@{evaluation_text(each)}", each)
                for name, history in histories.items()
                for each in history.scored
            ],
            a=a,
            b=b,
            outcome=outcome,
            shown=outcome.pairs[:_SHOWN] if outcome else [],
        )
        return Page(title="Compare", body=body, scripts=("charts",))


def make_panel() -> ComparePanel:
    return ComparePanel()


def _plain(pair: TaskPair) -> dict[str, Any]:
    return {
        "task": pair.task,
        "a": pair.a,
        "b": pair.b,
        "difference": pair.difference,
        "rollout_a": pair.row_a.id,
        "rollout_b": pair.row_b.id,
    }


def _query(names: list[str]) -> str:
    from urllib.parse import urlencode  # noqa: PLC0415

    return urlencode([("run", name) for name in names], errors="replace")


def _histories(sources: list[ShownRun]) -> dict[str, History]:
    return {each.name: each.files.refresh() for each in sources if each.files is not None}


def _data(histories: Mapping[str, History]) -> PlainAnswer:
    from starlette.responses import Response  # noqa: PLC0415

    charts: dict[str, list[dict[str, Any]]] = {name: [] for name in _CURVES}
    for name, history in histories.items():
        steps = thinned([history.steps[number] for number in sorted(history.steps)])
        x = [each.step for each in steps]
        charts["reward"].append(_curve(name, x, [each.reward for each in steps]))
        for metric in ("loss", "entropy"):
            charts[metric].append(_curve(name, x, [each.metrics.get(metric) for each in steps]))
        known = history.scored
        means: list[float | None] = [each.score.mean for each in known]
        charts["score"].append(_curve(name, [each.step for each in known], means))
    data = msgspec.json.encode({"x": [], "charts": charts})
    return Response(data, media_type="application/json")


def _curve(name: str, x: list[int], y: list[float | None]) -> dict[str, Any]:
    return {"name": name, "kind": "line", "x": x, "y": y}


def _side(view: View, which: str) -> Side | None:
    """Read ``run@step`` or ``run@step-phase-number``.

    Raises:
        ConfigError: there is no such run, or the place is not one.
    """
    text = view.query.get(which, "")
    if not text:
        return None
    name, _, at = text.rpartition("@")
    source, place = view.sources.get(name), parse_place(at)
    if source is None or place is None:
        raise ConfigError(
            f"{text!r} is not an evaluation: write RUN@STEP, such as mine@20, or mine@20-phase-1 "
            f"for the one after a prompt phase"
        )
    known = source.files.history.evaluations.get(place) if source.files is not None else None
    version = known.resources_version if known is not None else 0
    return Side(source=source, place=place, version=version or None)


async def _outcome(a: Side, b: Side) -> TaskComparison:
    one, other = await _tasks(a), await _tasks(b)
    pairs = [
        TaskPair(
            task=task,
            a=_score(one[task]),
            b=_score(other[task]),
            row_a=one[task][0],
            row_b=other[task][0],
        )
        for task in sorted(one.keys() & other.keys())
    ]
    pairs.sort(key=lambda each: -abs(each.difference))
    differences = [each.difference for each in pairs]
    spread = stdev(differences) if len(differences) > 1 else 0.0
    return TaskComparison(
        pairs=pairs,
        only_a=len(one.keys() - other.keys()),
        only_b=len(other.keys() - one.keys()),
        mean=fmean(differences) if differences else 0.0,
        half=_Z * spread / len(differences) ** 0.5 if differences else 0.0,
    )


def _score(rows: list[RolloutRow]) -> float:
    """Return the mean reward of a task's rollouts; one without a reward counts as 0."""
    return fmean(row.reward or 0.0 for row in rows)


async def _tasks(side: Side) -> dict[str, list[RolloutRow]]:
    """Return the ended rollouts of an evaluation by task: held-out ones, or else test ones."""
    await side.source.look()
    modes: tuple[Mode, ...] = ("val", "test")
    for mode in modes:
        # The candidates of a prompt phase have versions of their own.
        wanted = RowFilter(
            mode=mode,
            first_step=side.place[0],
            last_step=side.place[0],
            resources_version=side.version if mode == "val" else None,
        )
        found: dict[str, list[RolloutRow]] = defaultdict(list)
        after: Cursor | None = None
        for _ in range(_MOST_ROWS // _PIECE):
            rows = await side.source.reading.rows(
                RowQuery(wanted=wanted, after=after, limit=_PIECE)
            )
            for row in rows:
                if row.counted:
                    found[row.task].append(row)
            if len(rows) < _PIECE:
                break
            after = Cursor.of(rows[-1], "time")
        if found:
            return found
    return {}
