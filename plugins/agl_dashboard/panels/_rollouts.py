"""The page of rollouts: filter, order, pages by place, export."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast, get_args

import msgspec
from agl_reading import SORTS, Cursor, RolloutRow, RowFilter, RowQuery, Sort

from agl_core.types import FailureKind, Mode, RolloutStatus
from agl_dashboard._panel import Page, PlainAnswer, View
from agl_dashboard._rows import rows_file, rows_kind
from agl_dashboard._sources import ShownRun
from agl_dashboard._steps import shown_step, stored_step

_T = TypeVar("_T")

PAGE: Final = 50
_EXPORT: Final = 100_000
_PIECE: Final = 500
_MODES: Final[tuple[Mode, ...]] = get_args(Mode)
STATE: Final = (
    "mode",
    "status",
    "cause",
    "first",
    "last",
    "version",
    "task",
    "group",
    "agent",
    "least",
    "most",
    "text",
    "sort",
    "order",
)
"""Names in the address that make up a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowList:
    """A list of rollouts: what is in it, and in which order."""

    wanted: RowFilter
    sort: Sort
    descending: bool

    @classmethod
    def read(cls, query: Mapping[str, str]) -> RowList:
        """Read a list from the state of a page; what cannot be read is left out."""
        mode: Mode | None = _one(query.get("mode", ""), _MODES)
        status = _one(query.get("status", ""), tuple(RolloutStatus))
        sort = cast("Sort", _one(query.get("sort", ""), SORTS) or "time")
        wanted = RowFilter(
            mode=mode,
            statuses=(status,) if status else (),
            cause=query.get("cause", ""),
            first_step=stored_step(mode, _whole(query.get("first", ""))),
            last_step=stored_step(mode, _whole(query.get("last", ""))),
            resources_version=_whole(query.get("version", "")),
            task=query.get("task", ""),
            group_id=query.get("group", ""),
            agent=query.get("agent", ""),
            least_reward=_real(query.get("least", "")),
            most_reward=_real(query.get("most", "")),
            text=query.get("text", "")[:500],
        )
        return cls(wanted=wanted, sort=sort, descending=query.get("order", "") != "up")

    async def page(
        self, source: ShownRun, after: Cursor | None, *, back: bool = False, limit: int = PAGE
    ) -> list[RolloutRow]:
        """Return the rows after a place, or those before it."""
        descending = self.descending != back
        query = RowQuery(
            wanted=self.wanted, sort=self.sort, descending=descending, after=after, limit=limit
        )
        rows = await source.reading.rows(query)
        return rows[::-1] if back else rows


class RolloutsPanel:
    """Rollouts, newest first unless another order is chosen."""

    title = "Rollouts"
    order = 20
    scope: Literal["all", "run"] = "run"

    async def page(self, view: View) -> Page | PlainAnswer:
        listing = RowList.read(view.query)
        reading = view.run.reading
        kind = rows_kind(view.rest, "rollouts")
        if kind is not None:
            return rows_file("rollouts", kind, _exported(view, listing))
        back = "before" in view.query
        place = view.query.get("before" if back else "after", "")
        after = Cursor.parse(place) if place else None
        rows = await listing.page(view.run, after, back=back, limit=PAGE + 1)
        more = len(rows) > PAGE
        rows = (rows[1:] if back else rows[:PAGE]) if more else rows
        calls = await reading.sums(["calls"])
        state = {name: view.query[name] for name in STATE if view.query.get(name)}
        body = view.template(
            "rollouts.html",
            view=view,
            rows=rows,
            state=state,
            listing=listing,
            total=await reading.count(listing.wanted),
            progress=reading.progress,
            agents=sorted({each.name for each in calls}),
            statuses=[each.value for each in RolloutStatus],
            causes=[each.value for each in FailureKind],
            shown_step=shown_step,
            previous=_place(rows[0], listing) if rows and (more if back else after) else "",
            next=_place(rows[-1], listing) if rows and (more or back) else "",
        )
        return Page(title="Rollouts", body=body, live=True)


def make_panel() -> RolloutsPanel:
    return RolloutsPanel()


def _place(row: RolloutRow, listing: RowList) -> str:
    return str(Cursor.of(row, listing.sort))


async def _exported(view: View, listing: RowList) -> AsyncGenerator[dict[str, Any], None]:
    after: Cursor | None = None
    for _ in range(_EXPORT // _PIECE):
        rows = await listing.page(view.run, after, limit=_PIECE)
        for row in rows:
            yield msgspec.to_builtins(row)
        if len(rows) < _PIECE:
            return
        after = Cursor.of(rows[-1], listing.sort)


def _one(text: str, known: tuple[_T, ...]) -> _T | None:
    return next((each for each in known if each == text), None)


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 else None  # noqa: PLR2004


def _real(text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
