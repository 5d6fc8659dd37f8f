"""The reading of a store through an index in a file of its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from agl_core.interfaces import Store
from agl_core.types import Rollout, RolloutQuery, Span
from agl_reading._index_file import IndexFile
from agl_reading._rows import Count, RolloutRow, RowFilter, RowQuery, Sum, SumKind
from agl_reading._summary import countable, plain_row, summarise

T = TypeVar("T")

_PAGE: Final = 500
_FEWEST, _MOST = 20, 640
"""Rollouts whose spans are read at once: as many as have about `_SPANS`, as each may have thousands."""
_SPANS: Final = 2000
_OVERLAP: Final = 200
"""Rows that are read again: the ids of several processes follow their clocks."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an index is."""

    rows: int = 0
    """Rollouts in the index."""
    uncounted: int = 0
    """Ended rollouts whose spans are not summed yet."""
    changes: int = 0
    """Number of changes so far; equal numbers mean equal answers."""


class IndexedReading:
    """`Reading` from an SQLite file of its own; the store is only read through `Store`.

    `refresh` takes over what is new: first the rows of all rollouts, then the sums and texts of ended
    ones, newest first. So the newest rows can be shown while a large store is still being read. The
    file holds the words that were said, not the texts. It can be deleted at any time.

    Several processes may use one file.
    """

    def __init__(
        self, store: Store, path: Path, *, weights: Mapping[str, float] | None = None
    ) -> None:
        """Read an open store.

        Args:
            store: The store; it is not closed.
            path: The index, which is created; its directory is made private.
            weights: Weights of reward channels; 1 for the others.
        """
        self._store = store
        self._file = IndexFile(path)
        self._weights = weights
        self._at_once = _FEWEST
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="agl-index")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="agl-index-reader")

    async def open(self) -> None:
        """Open or create the file; a file of another store or version is rebuilt.

        Raises:
            StoreError: the file cannot be opened or written.
        """
        try:
            await self._in(self._writing, self._file.open)
            oldest = await self._in(self._writing, self._file.oldest)
            if oldest and not await self._store.rollouts(RolloutQuery(ids=(oldest,), limit=1)):
                await self._in(self._writing, self._file.clear)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the file; idempotent."""
        await asyncio.to_thread(self._reading.shutdown)
        await asyncio.to_thread(self._writing.shutdown)
        self._file.close()

    @property
    def progress(self) -> Progress:
        """How far the index is, after the last `refresh`."""
        return Progress(
            rows=self._file.rows, uncounted=self._file.uncounted, changes=self._file.changes
        )

    async def refresh(self, *, most: int = 2000) -> bool:
        """Take over what is new in the store.

        Args:
            most: Rough number of rollouts to read before returning.

        Returns:
            Whether there is more, so that it should be called again at once.
        """
        changes = self._file.changes
        try:
            return await self._refresh(most)
        finally:
            if self._file.changes != changes:
                await self._in(self._writing, self._file.measure)

    async def _refresh(self, most: int) -> bool:
        after = await self._in(self._writing, lambda: self._file.place(_OVERLAP))
        read = 0
        while read < most:
            page = await self._store.rollouts(RolloutQuery(after_id=after or None, limit=_PAGE))
            read += len(page)
            await self._take(page)
            if len(page) < _PAGE:
                break
            after = page[-1].id
        else:
            return True
        await self._follow_open()
        counted = 0
        while counted < most:
            some = await self._count_some()
            if not some:
                return False
            counted += some
        return True

    async def _take(self, page: Sequence[Rollout]) -> None:
        if page:
            rows = [(plain_row(rollout), countable(rollout)) for rollout in page]
            await self._in(self._writing, lambda: self._file.take(rows))

    async def _follow_open(self) -> None:
        ids = await self._in(self._writing, self._file.open_ids)
        for start in range(0, len(ids), _PAGE):
            some = tuple(ids[start : start + _PAGE])
            await self._take(await self._store.rollouts(RolloutQuery(ids=some, limit=len(some))))

    async def _count_some(self) -> int:
        ids = await self._in(self._writing, lambda: self._file.uncounted_ids(self._at_once))
        if not ids:
            return 0
        rollouts = await self._store.rollouts(RolloutQuery(ids=tuple(ids), limit=len(ids)))
        by_rollout: dict[str, list[Span]] = defaultdict(list)
        spans = await self._store.spans(ids)
        for span in spans:
            by_rollout[span.rollout_id].append(span)
        fitting = len(ids) * _SPANS // max(len(spans), 1)
        self._at_once = min(max(fitting, _FEWEST), 2 * self._at_once, _MOST)

        def add() -> None:
            self._file.add(
                [
                    summarise(rollout, by_rollout[rollout.id], weights=self._weights)
                    for rollout in rollouts
                ]
            )

        await self._in(self._writing, add)
        return len(ids)

    async def rows(self, query: RowQuery) -> list[RolloutRow]:
        return await self._in(self._reading, lambda: self._file.page(query))

    async def count(self, wanted: RowFilter, *, most: int = 10_000) -> Count:
        return await self._in(self._reading, lambda: self._file.count(wanted, most))

    async def sums(
        self, kinds: Sequence[SumKind], *, run_id: str = "", first_step: int = 0
    ) -> list[Sum]:
        return await self._in(self._reading, lambda: self._file.sums(kinds, run_id, first_step))

    async def _in(self, thread: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, call)
