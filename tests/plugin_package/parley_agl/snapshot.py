"""The store ``snapshot``: one small file, which every write replaces."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

import msgspec
from msgspec.structs import replace
from pydantic import field_validator

from agl_core import Attempt, Resources, Rollout, StoreError
from agl_core.store import (
    RESOURCES,
    ROLLOUTS,
    BaseStore,
    BaseStoreOptions,
    Clock,
    Codec,
    Lead,
    Owner,
    Records,
    Retention,
    encode,
)
from agl_core.types import RolloutQuery, RolloutStatus

T = TypeVar("T")


class SnapshotOptions(BaseStoreOptions):
    """Options of `SnapshotStore`."""

    shared = False

    path: str | None = None
    """The file; ``records.snapshot`` in the run's directory when None."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, given: str | None) -> str | None:
        return given and str(Path(given).absolute())

    def file(self, directory: Path) -> Path:
        return Path(self.path or directory / "records.snapshot")

    def apart(self) -> Self:
        return self.model_copy(update={"path": None})


def make_store(options: SnapshotOptions, directory: Path) -> SnapshotStore:
    """Return the store of a run in `directory`."""
    return SnapshotStore(options.file(directory), retention=options.retention)


class SnapshotStore(BaseStore):
    """Keeps all records of one process in memory and, after every write, in a file."""

    def __init__(
        self, file: Path, *, retention: Retention = "keep", clock: Clock | None = None
    ) -> None:
        super().__init__(retention=retention, clock=clock)
        self._file = file

    async def connect(self) -> bool:
        try:
            self._saved = self._file.read_bytes() if self._file.exists() else encode(_Tables())
        except OSError as error:
            raise StoreError(f"{self._file} cannot be read: {error}") from error
        self._tables = _TABLES.decode(self._saved)
        self._thread = ThreadPoolExecutor(1)
        return True

    async def disconnect(self) -> None:
        self._thread.shutdown()

    async def write(self, work: Callable[[Records], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, work)

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: query(_Rows(self._tables)))

    def _commit(self, work: Callable[[Records], T]) -> T:
        try:
            value = work(_Rows(self._tables))
            saved = encode(self._tables)
            self._replace(saved)
        except BaseException:
            self._tables = _TABLES.decode(self._saved)
            raise
        self._saved = saved
        return value

    def _replace(self, saved: bytes) -> None:
        part = self._file.with_name(f"{self._file.name}.part")
        try:
            part.write_bytes(saved)
            part.replace(self._file)
        except OSError as error:
            raise StoreError(f"{self._file} cannot be written: {error}") from error


class _Attempt(msgspec.Struct):
    rollout_id: str
    running: bool
    due_at: float
    digest: bytes
    spans: dict[str, bytes]


class _Tables(msgspec.Struct):
    rollouts: dict[str, bytes] = {}
    attempts: dict[str, _Attempt] = {}
    resources: list[bytes] = []
    lead: Lead | None = None


_TABLES = Codec(_Tables)


class _Rows(Records):
    def __init__(self, tables: _Tables) -> None:
        self._all = tables

    def _load(self, rollout_id: str) -> Rollout:
        return ROLLOUTS.decode(self._all.rollouts[rollout_id])

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        return {one: self._load(one) for one in ids if one in self._all.rollouts}

    def select(self, query: RolloutQuery) -> list[Rollout]:
        after = query.after_id
        ids = [one for one in sorted(self._all.rollouts) if after is None or one > after]
        found = (rollout for rollout in map(self._load, ids) if _matches(rollout, query))
        return list(islice(found, query.limit))

    def queued(self, limit: int) -> list[Rollout]:
        every = map(self._load, self._all.rollouts)
        return list(islice((one for one in every if one.status is RolloutStatus.QUEUED), limit))

    def running(self, *, due_by: float) -> list[Rollout]:
        running = [one for one in self._all.attempts.values() if one.running]
        return [self._load(one.rollout_id) for one in running if one.due_at <= due_by]

    def next_due(self) -> float:
        due = (one.due_at for one in self._all.attempts.values() if one.running)
        return min(due, default=math.inf)

    def add_rollout(self, rollout: Rollout) -> None:
        self._all.rollouts[rollout.id] = encode(rollout)

    def save_rollout(self, rollout: Rollout) -> None:
        stored = self._load(rollout.id)
        self.add_rollout(replace(stored, status=rollout.status, consumed=rollout.consumed))

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        rollout, stored = self._load(attempt.rollout_id), self._all.attempts.get(attempt.id)
        earlier = [one for one in rollout.attempts if one.id != attempt.id]
        self.add_rollout(replace(rollout, attempts=(*earlier, attempt)))
        self._all.attempts[attempt.id] = _Attempt(
            attempt.rollout_id,
            not attempt.status.final,
            due_at,
            digest,
            stored.spans if stored is not None else {},
        )

    def drop_attempt(self, attempt_id: str) -> None:
        rollout = self._load(self._all.attempts.pop(attempt_id).rollout_id)
        left = tuple(one for one in rollout.attempts if one.id != attempt_id)
        self.add_rollout(replace(rollout, attempts=left))

    def owner(self, attempt_id: str) -> Owner | None:
        row = self._all.attempts.get(attempt_id)
        return None if row is None else Owner(row.rollout_id, row.running)

    def digest(self, attempt_id: str) -> bytes:
        return self._all.attempts[attempt_id].digest

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        rows = self._all.attempts[attempt_id].spans
        before = len(rows)
        for span_id, blob in spans:
            rows.setdefault(span_id, blob)
        return len(rows) - before

    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        return sum(one in self._all.attempts[attempt_id].spans for one in ids)

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        for rollout in map(self._load, sorted(self._all.rollouts.keys() & rollout_ids)):
            for attempt in rollout.attempts:
                if attempt_id in (None, attempt.id):
                    yield list(self._all.attempts[attempt.id].spans.values())

    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        for attempt in self._all.attempts.values():
            if attempt.rollout_id in rollout_ids:
                attempt.spans.clear()

    def add_resources(self, resources: Resources) -> None:
        self._all.resources.append(encode(resources))

    def resources(self, version: int) -> Resources | None:
        known = 0 < version <= len(self._all.resources)
        return RESOURCES.decode(self._all.resources[version - 1]) if known else None

    def latest_version(self) -> int:
        return len(self._all.resources)

    def lead(self) -> Lead | None:
        return self._all.lead

    def save_lead(self, lead: Lead | None) -> None:
        self._all.lead = lead


def _matches(rollout: Rollout, query: RolloutQuery) -> bool:
    return (
        (not query.ids or rollout.id in query.ids)
        and query.run_id in (None, rollout.run_id)
        and query.group_id in (None, rollout.group_id)
        and query.mode in (None, rollout.mode)
        and (not query.statuses or rollout.status in query.statuses)
    )
