"""The reading of any store without an index: everything is read for every answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence

from msgspec.structs import replace

from agl_core.interfaces import Store
from agl_core.types import Mode, Rollout, RolloutQuery, Span
from agl_reading._rows import Count, RolloutRow, RowFilter, RowQuery, Sum, SumKind
from agl_reading._summary import Summary, countable, plain_row, summarise
from agl_reading._words import holds, indexed, phrases

_PAGE = 200


class ScanReading:
    """`Reading` by scanning the store, for small stores; `IndexedReading` is for all others."""

    def __init__(self, store: Store, *, weights: Mapping[str, float] | None = None) -> None:
        """Read an open store.

        Args:
            store: The store; it is not closed.
            weights: Weights of reward channels; 1 for the others.
        """
        self._store = store
        self._weights = weights

    async def rows(self, query: RowQuery) -> list[RolloutRow]:
        found = [each.row async for each in self._summaries() if matches(each, query.wanted)]
        found.sort(key=lambda row: (row.key(query.sort), row.id), reverse=query.descending)
        if query.after is not None:
            place = (query.after.key, query.after.id)
            found = [
                row
                for row in found
                if _beyond((row.key(query.sort), row.id), place, query.descending)
            ]
        return found[: query.limit]

    async def count(self, wanted: RowFilter, *, most: int = 10_000) -> Count:
        number = 0
        async for each in self._summaries():
            number += matches(each, wanted)
            if number > most:
                return Count(number=most, capped=True)
        return Count(number=number)

    async def sums(
        self, kinds: Sequence[SumKind], *, run_id: str = "", first_step: int = 0
    ) -> list[Sum]:
        found: dict[tuple[Mode, int, SumKind, str], Sum] = {}
        async for each in self._summaries():
            if each.row.step < first_step or (run_id and each.row.run_id != run_id):
                continue
            for one in each.sums.values():
                if one.kind not in kinds:
                    continue
                place = (one.mode, one.step, one.kind, one.name)
                known = found.get(place)
                if known is not None:
                    one = replace(known, n=known.n + one.n, total=known.total + one.total)  # noqa: PLW2901
                found[place] = one
        return [found[place] for place in sorted(found)]

    async def _summaries(self) -> AsyncGenerator[Summary, None]:
        query = RolloutQuery(limit=_PAGE)
        while page := await self._store.rollouts(query):
            for summary in await self._summed(page):
                yield summary
            if len(page) < _PAGE:
                return
            query = replace(query, after_id=page[-1].id)

    async def _summed(self, page: Sequence[Rollout]) -> list[Summary]:
        by_rollout: dict[str, list[Span]] = defaultdict(list)
        ended = [rollout.id for rollout in page if countable(rollout)]
        for span in await self._store.spans(ended) if ended else ():
            by_rollout[span.rollout_id].append(span)
        return [
            summarise(rollout, by_rollout[rollout.id], weights=self._weights)
            if countable(rollout)
            else Summary(plain_row(rollout))
            for rollout in page
        ]


def _beyond(place: tuple[float, str], other: tuple[float, str], descending: bool) -> bool:
    return place < other if descending else place > other


def matches(each: Summary, wanted: RowFilter) -> bool:
    """Return whether a rollout passes a filter."""
    row = each.row
    steps = (wanted.first_step, wanted.last_step)
    return (
        wanted.id in ("", row.id)
        and wanted.run_id in ("", row.run_id)
        and wanted.mode in (None, row.mode)
        and (not wanted.statuses or row.status in wanted.statuses)
        and wanted.cause in ("", row.cause)
        and wanted.task in ("", row.task)
        and wanted.group_id in ("", row.group_id)
        and (not wanted.agent or wanted.agent in row.agents)
        and wanted.resources_version in (None, row.resources_version)
        and _within(row.step, *steps)
        and _within(row.reward, wanted.least_reward, wanted.most_reward)
        and _said(each, phrases(wanted.text))
    )


def _within(value: float | None, least: float | None, most: float | None) -> bool:
    if least is None and most is None:
        return True
    if value is None:
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def _said(each: Summary, asked: Sequence[str]) -> bool:
    if not asked:
        return True
    if not each.row.counted:
        return False
    return holds(indexed(each.text), asked)
