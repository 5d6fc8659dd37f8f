"""Access to the file of an existing store: reading, and permanent deletion of spans."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NoReturn, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec.structs import replace

from agl_core.errors import StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.store._base import BatchingStore
from agl_core.store._operations import Operations
from agl_core.store._records import Records
from agl_core.store._sql import (
    SCHEMA_VERSION,
    FileSettings,
    SqlRecords,
    give_back_pages,
    key,
    roll_back,
    store_errors,
)

T = TypeVar("T")


@runtime_checkable
class Readable(Protocol):
    """A store that can be opened for reading only."""

    def reader(self) -> StoreLifecycle:
        """Return a read-only store, not yet open, with the same records.

        Opening it neither queues rollouts again nor ends attempts, whether or not other processes
        have the store open.
        """
        ...


class SqliteReader(BatchingStore):
    """A store that reads a file without changing it; methods that write raise StoreError.

    It takes no lock on ``-owners``, so another process can still open the store exclusively. It
    does not end overdue attempts.
    """

    poll_interval_s = 1.0

    def __init__(self, settings: FileSettings) -> None:
        super().__init__()
        self._settings = settings

    async def connect(self) -> bool:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agl-store-reader")
        try:
            self._reading = await self._in_thread(self._connect)
        except StoreError:
            self._thread.shutdown()
            raise
        return False

    def _connect(self) -> sqlite3.Connection:
        with store_errors(self._settings):
            return connect_existing(self._settings, mode="ro")

    async def disconnect(self) -> None:
        await self._in_thread(self._reading.close)
        self._thread.shutdown()

    def submit(self, operation: Callable[[Operations], T], *, rows: float = math.inf) -> NoReturn:
        del operation, rows
        raise StoreError(
            f"The store in {self._settings.path} was opened for reading: open it with open() to "
            f"change it"
        )

    async def _sweep(self) -> float:
        """Return infinity, because processes that can write end overdue attempts."""
        return math.inf

    async def _restart_timers(self) -> None:
        """Do nothing: processes that can write restart leases and deadlines."""

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        del rows
        return await self._in_thread(lambda: look_up(self._reading, self._settings, query))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def look_up(
    connection: sqlite3.Connection, settings: FileSettings, query: Callable[[Records], T]
) -> T:
    """Run a query on a consistent snapshot.

    Raises:
        StoreError: the file cannot be read.
    """
    with store_errors(settings):
        connection.execute("BEGIN")
        try:
            return query(SqlRecords(connection))
        finally:
            roll_back(connection)


def connect_existing(settings: FileSettings, *, mode: Literal["ro", "rw"]) -> sqlite3.Connection:
    """Connect to the file of an existing store.

    Raises:
        StoreError: the file does not exist, or is not a store that this version reads.
    """
    path = settings.path
    if not path.is_file():
        raise StoreError(f"There is no store in {path}: the file does not exist")
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=settings.busy_timeout_s,
        isolation_level=None,
    )
    try:
        _check_schema(connection, settings)
        connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
    except (sqlite3.Error, StoreError):
        connection.close()
        raise
    return connection


def _check_schema(connection: sqlite3.Connection, settings: FileSettings) -> None:
    rows = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema'")
    if rows.fetchone() is None:
        raise StoreError(f"{settings.path} is no store: it has no table of agl-core's")
    (version,) = connection.execute("SELECT version FROM schema").fetchone()
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{settings.path} was written by a newer agl-core (schema {version}, this one reads "
            f"up to {SCHEMA_VERSION}): upgrade agl-core"
        )


_ROLLOUTS_PER_WRITE = 100
"""Small, so that a run that writes to the same file waits only briefly."""
_CHECKPOINT_WAIT_MS = 1000


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what a pruning deleted, or would delete."""

    rollouts: int = 0
    """Number of rollouts that had spans."""
    spans: int = 0
    size: int = 0
    """Bytes of the spans' records."""
    kept: int = 0
    """Number of requested rollouts that were not pruned, because they are not final."""

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            rollouts=self.rollouts + other.rollouts,
            spans=self.spans + other.spans,
            size=self.size + other.size,
            kept=self.kept + other.kept,
        )


@runtime_checkable
class Prunable(Protocol):
    """A store that can permanently delete spans, whether or not it is open."""

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Delete the spans of the final rollouts among the given ones, and mark these as consumed.

        Rollouts, attempts, failures and outputs stay.

        Args:
            rollout_ids: The rollouts; unknown ids and rollouts that are not final are ignored.
            dry_run: Count only.
        """
        ...


def prune_file(settings: FileSettings, rollout_ids: Sequence[str], *, dry_run: bool) -> Pruned:
    """Run `Prunable.prune` on a file through a new connection; other processes may use the file."""
    total = Pruned()
    with store_errors(settings):
        connection = connect_existing(settings, mode="ro" if dry_run else "rw")
        try:
            for start in range(0, len(rollout_ids), _ROLLOUTS_PER_WRITE):
                piece = rollout_ids[start : start + _ROLLOUTS_PER_WRITE]
                total += _prune(connection, piece, dry_run=dry_run)
            if not dry_run:
                _reclaim(connection)
        finally:
            connection.close()
    return total


def _prune(connection: sqlite3.Connection, ids: Sequence[str], *, dry_run: bool) -> Pruned:
    connection.execute("BEGIN" if dry_run else "BEGIN IMMEDIATE")
    try:
        records = SqlRecords(connection)
        found = records.rollouts(ids)
        final = [rollout for rollout in found.values() if rollout.status.final]
        sizes = [_size(connection, rollout.id) for rollout in final]
        pruned = Pruned(
            rollouts=sum(1 for spans, _ in sizes if spans),
            spans=sum(spans for spans, _ in sizes),
            size=sum(size for _, size in sizes),
            kept=len(found) - len(final),
        )
        if not dry_run:
            records.drop_spans([rollout.id for rollout in final])
            for rollout in final:
                records.save_rollout(replace(rollout, consumed=True))
        connection.execute("COMMIT")
    except BaseException:
        roll_back(connection)
        raise
    return pruned


def _size(connection: sqlite3.Connection, rollout_id: str) -> tuple[int, int]:
    """Return number and bytes of a rollout's spans."""
    return connection.execute(
        "SELECT count(*), coalesce(sum(length(spans.body)), 0) FROM spans "
        "JOIN attempts ON attempts.number = spans.attempt "
        "WHERE attempts.rollout = (SELECT number FROM rollouts WHERE id = ?)",
        (key(rollout_id),),
    ).fetchone()


def _reclaim(connection: sqlite3.Connection) -> None:
    """Remove the file's free pages, in pieces, and empty the write-ahead log if no reader uses it.

    A file without incremental auto-vacuum keeps its free pages and reuses them.
    """
    while give_back_pages(connection):
        pass
    connection.execute(f"PRAGMA busy_timeout = {_CHECKPOINT_WAIT_MS}")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
