"""The store ``memory``, whose records are lost when the process ends."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from agl_core.errors import AglError
from agl_core.store._base import BatchingStore, Retention
from agl_core.store._codec import ATTEMPTS, RESOURCES, ROLLOUTS, encode
from agl_core.store._operations import Operations
from agl_core.store._records import Lead, Owner, Records
from agl_core.store._waiting import Clock
from agl_core.types import Attempt, Mode, Resources, Rollout, RolloutQuery, RolloutStatus

if TYPE_CHECKING:
    from agl_core.store.options import MemoryOptions

T = TypeVar("T")


def make_store(options: MemoryOptions, directory: Path) -> MemoryStore:
    """Make the store ``memory``."""
    del directory
    return MemoryStore(retention=options.retention)


class MemoryStore(BatchingStore):
    """A store in dictionaries of one process, for tests and runs that need no durable record."""

    def __init__(self, *, retention: Retention = "keep", clock: Clock | None = None) -> None:
        """Build an empty store.

        Args:
            retention: ``drop_spans`` deletes the spans of consumed rollouts.
            clock: Clock for leases and deadlines; None means the system clock.
        """
        super().__init__(retention=retention, clock=clock)
        self._records: Records = MemoryRecords()

    async def connect(self) -> bool:
        return True

    async def disconnect(self) -> None:
        return

    def submit(
        self, operation: Callable[[Operations], T], *, rows: float = math.inf
    ) -> asyncio.Future[T]:
        del rows
        operations = Operations(self._records, self.clock.now())
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(operation(operations))
        except AglError as error:
            future.set_exception(error)
        self.announce(operations.changes)
        return future

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        del rows
        return query(self._records)


@dataclass(slots=True)
class _Row:
    """A rollout, stored as bytes so that callers cannot change the record through a reference."""

    number: int
    body: bytes
    run_id: str
    group_id: str
    mode: Mode
    status: RolloutStatus
    consumed: bool = False
    attempts: list[str] = field(default_factory=list[str])

    def matches(self, query: RolloutQuery) -> bool:
        return (
            query.run_id in (None, self.run_id)
            and query.group_id in (None, self.group_id)
            and query.mode in (None, self.mode)
            and (not query.statuses or self.status in query.statuses)
        )


@dataclass(slots=True)
class _AttemptRow:
    rollout_id: str
    body: bytes
    running: bool
    digest: bytes
    spans: dict[str, bytes] = field(default_factory=dict[str, bytes])


class MemoryRecords(Records):
    """`Records` in dictionaries."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._ids: list[str] = []
        """Sorted."""
        self._queued: list[tuple[int, str]] = []
        """Sorted by row number."""
        self._attempts: dict[str, _AttemptRow] = {}
        self._due: dict[str, float] = {}
        self._resources: dict[int, bytes] = {}
        self._lead: Lead | None = None

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        return {one: self._rollout(one) for one in ids if one in self._rows}

    def _rollout(self, rollout_id: str) -> Rollout:
        row = self._rows[rollout_id]
        attempts = tuple(ATTEMPTS.decode(self._attempts[one].body) for one in row.attempts)
        body = ROLLOUTS.decode(row.body)
        return replace(body, status=row.status, consumed=row.consumed, attempts=attempts)

    def select(self, query: RolloutQuery) -> list[Rollout]:
        ids = sorted(self._rows.keys() & query.ids) if query.ids else self._ids
        start = bisect_right(ids, query.after_id) if query.after_id is not None else 0
        later = islice(ids, start, None)
        matching = (rollout_id for rollout_id in later if self._rows[rollout_id].matches(query))
        return [self._rollout(rollout_id) for rollout_id in islice(matching, max(0, query.limit))]

    def queued(self, limit: int) -> list[Rollout]:
        return [self._rollout(rollout_id) for _, rollout_id in self._queued[:limit]]

    def running(self, *, due_by: float) -> list[Rollout]:
        due = [attempt_id for attempt_id, due_at in self._due.items() if due_at <= due_by]
        return [self._rollout(self._attempts[one].rollout_id) for one in due]

    def next_due(self) -> float:
        return min(self._due.values(), default=math.inf)

    def add_rollout(self, rollout: Rollout) -> None:
        row = _Row(
            number=len(self._rows),
            body=encode(rollout),
            run_id=rollout.run_id,
            group_id=rollout.group_id,
            mode=rollout.mode,
            status=rollout.status,
        )
        self._rows[rollout.id] = row
        insort(self._ids, rollout.id)
        insort(self._queued, (row.number, rollout.id))

    def save_rollout(self, rollout: Rollout) -> None:
        row = self._rows[rollout.id]
        was, row.status, row.consumed = row.status, rollout.status, rollout.consumed
        place = (row.number, rollout.id)
        if was is RolloutStatus.QUEUED and row.status is not RolloutStatus.QUEUED:
            self._queued.remove(place)
        elif was is not RolloutStatus.QUEUED and row.status is RolloutStatus.QUEUED:
            insort(self._queued, place)

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        stored = self._attempts.get(attempt.id)
        running = not attempt.status.final
        self._attempts[attempt.id] = _AttemptRow(
            rollout_id=attempt.rollout_id,
            body=encode(attempt),
            running=running,
            digest=digest,
            spans=stored.spans if stored else {},
        )
        if stored is None:
            self._rows[attempt.rollout_id].attempts.append(attempt.id)
        if running:
            self._due[attempt.id] = due_at
        else:
            self._due.pop(attempt.id, None)

    def drop_attempt(self, attempt_id: str) -> None:
        row = self._attempts.pop(attempt_id)
        self._rows[row.rollout_id].attempts.remove(attempt_id)
        self._due.pop(attempt_id, None)

    def owner(self, attempt_id: str) -> Owner | None:
        row = self._attempts.get(attempt_id)
        return None if row is None else Owner(rollout_id=row.rollout_id, running=row.running)

    def digest(self, attempt_id: str) -> bytes:
        return self._attempts[attempt_id].digest

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        rows = self._attempts[attempt_id].spans
        before = len(rows)
        for span_id, blob in spans:
            rows.setdefault(span_id, blob)
        return len(rows) - before

    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        rows = self._attempts[attempt_id].spans
        return sum(one in rows for one in ids)

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        for rollout_id in sorted(self._rows.keys() & rollout_ids):
            for one in self._rows[rollout_id].attempts:
                if attempt_id in (None, one):
                    yield list(self._attempts[one].spans.values())

    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        for rollout_id in rollout_ids:
            for attempt_id in self._rows[rollout_id].attempts:
                self._attempts[attempt_id].spans.clear()

    def add_resources(self, resources: Resources) -> None:
        self._resources[resources.version] = encode(resources)

    def resources(self, version: int) -> Resources | None:
        blob = self._resources.get(version)
        return None if blob is None else RESOURCES.decode(blob)

    def latest_version(self) -> int:
        return max(self._resources, default=0)

    def lead(self) -> Lead | None:
        return self._lead

    def save_lead(self, lead: Lead | None) -> None:
        self._lead = lead
