"""The default store: one SQLite file in write-ahead mode."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeVar

from msgspec.structs import replace

from agl_core.clocks import monotonic
from agl_core.errors import ConfigError, StoreError
from agl_core.files import make_private_directory, touch_private
from agl_core.store._base import BatchingStore, Retention
from agl_core.store._operations import Operations
from agl_core.store._records import Pruned, Records
from agl_core.store._sql import (
    SCHEMA_VERSION,
    FileSettings,
    SqlRecords,
    connect,
    give_back_pages,
    key,
    prepare,
    roll_back,
    store_errors,
)
from agl_core.store._waiting import Clock
from agl_core.store._writer import Writer

if TYPE_CHECKING:
    from agl_core.store.options import SqliteOptions

T = TypeVar("T")
Orphans = Literal["requeue", "keep"]
_PAUSE_S: Final = 0.01
_ROLLOUTS_PER_WRITE = 100
"""Small, so that a run that writes to the same file waits only briefly."""
_CHECKPOINT_WAIT_MS = 1000


def make_store(options: SqliteOptions, directory: Path) -> SqliteStore:
    """Make the store ``sqlite`` of a run in `directory`."""
    return SqliteStore(
        options.file(directory),
        synchronous=options.synchronous,
        busy_timeout_s=options.busy_timeout_s,
        retention=options.retention,
    )


class SqliteStore(BatchingStore):
    """A store in one SQLite file, with one writing and one reading thread.

    Small reads and writes run on the event loop instead, because they take less time than a thread
    switch. Acknowledged writes survive a crash of the process (``synchronous="normal"``) or also a
    power failure (``"full"``). Beside the file are SQLite's ``-wal`` and ``-shm`` files and an
    ``-owners`` file, whose lock shows whether another process has the store open.

    Several processes may open the file. A write through a store object wakes callers that wait on
    the same object immediately; callers in other processes see it within a second.

    A crash leaves attempts without a runner. A process that opens the file while no other process
    has it open ends these attempts as LOST and immediately queues their rollouts again. If another
    process has the file open, its attempts may be running, so only leases and deadlines end
    attempts. A store server (``orphans="keep"``) does not end attempts when it opens the file,
    because its runners are other processes: it extends every running attempt by one lease.
    """

    poll_interval_s = 1.0
    sweep_interval_s = 10.0

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["normal", "full"] = "normal",
        busy_timeout_s: float = 30.0,
        retention: Retention = "keep",
        orphans: Orphans = "requeue",
        clock: Clock | None = None,
    ) -> None:
        """Configure the store; `open` creates the file and its directory.

        Args:
            path: The database file.
            synchronous: ``full`` waits for the disk at every commit.
            busy_timeout_s: How long to wait for other processes that write.
            retention: ``drop_spans`` deletes the spans of consumed rollouts and returns their
                space to the file system in pieces.
            orphans: Whether running attempts are ended and queued again when the file is opened.
            clock: Clock for leases and deadlines; None means the system clock.

        Raises:
            ConfigError: `path` is empty or ``:memory:``.
        """
        super().__init__(retention=retention, clock=clock)
        if str(path) in ("", ":memory:"):
            raise ConfigError(f"store.path={str(path)!r} names no file: use the store 'memory'")
        self._settings = FileSettings(
            path=Path(path), synchronous=synchronous, busy_timeout_s=busy_timeout_s
        )
        self._orphans: Orphans = orphans

    def reader(self) -> SqliteReader:
        """Return a read-only store on the same file; see `agl_core.store.Readable`."""
        return SqliteReader(self._settings)

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Permanently delete spans of final rollouts; see `agl_core.store.Prunable`."""
        ids = list(rollout_ids)
        return await asyncio.to_thread(prune_file, self._settings, ids, dry_run=dry_run)

    async def connect(self) -> bool:
        self._writer = Writer(
            _File(self._settings, self.clock, self._orphans),
            self._settings,
            now=self.clock.now,
            announce=self.announce,
        )
        await self._writer.start()
        self._reading = _ReadingThread(self._settings)
        try:
            await self._reading.start(partial(connect, self._settings, read_only=True))
        except StoreError:
            await self._writer.stop()
            raise
        return False  # the writer thread handled orphans while it held the exclusive lock

    async def disconnect(self) -> None:
        await self._reading.stop()
        await self._writer.stop()

    def submit(
        self, operation: Callable[[Operations], T], *, rows: float = math.inf
    ) -> asyncio.Future[T]:
        return self._writer.submit(operation, rows=rows)

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        await asyncio.sleep(0)  # a caller that reads in a loop must not block other tasks
        with self._writer.spared(rows) as connection:
            # The writing connection has recently used pages in its cache.
            if connection is not None:
                return look_up(connection, self._settings, query)
        return await self._reading.look_up(query)


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
        self._reading = _ReadingThread(self._settings)
        await self._reading.start(partial(connect_existing, self._settings, mode="ro"))
        return False

    async def disconnect(self) -> None:
        await self._reading.stop()

    def submit(self, operation: Callable[[Operations], T], *, rows: float = math.inf) -> NoReturn:
        del operation, rows
        raise StoreError(
            f"The store in {self._settings.path} was opened for reading: open it with open() to "
            f"change it"
        )

    async def sweep(self) -> float:
        """Return infinity, because processes that can write end overdue attempts."""
        return math.inf

    async def restart_timers(self) -> None:
        """Do nothing: processes that can write restart leases and deadlines."""

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        del rows
        return await self._reading.look_up(query)


class _ReadingThread:
    """A thread with a connection for reading."""

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agl-store-reader")

    async def start(self, open_connection: Callable[[], sqlite3.Connection]) -> None:
        """Open the connection.

        Raises:
            StoreError: the file cannot be read; the thread has then ended.
        """
        try:
            with store_errors(self._settings):
                self._connection = await self._run(open_connection)
        except StoreError:
            self._thread.shutdown()
            raise

    async def look_up(self, query: Callable[[Records], T]) -> T:
        return await self._run(lambda: look_up(self._connection, self._settings, query))

    async def stop(self) -> None:
        await self._run(self._connection.close)
        self._thread.shutdown()

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class _File:
    """The store's file, which the writer thread opens and closes."""

    def __init__(self, settings: FileSettings, clock: Clock, orphans: Orphans) -> None:
        self._settings = settings
        self._clock = clock
        self._orphans: Orphans = orphans
        self._ownership = FileOwnership(settings.path, timeout_s=settings.busy_timeout_s)

    def open(self) -> sqlite3.Connection:
        make_private_directory(self._settings.path.parent)
        alone = self._ownership.enter()
        try:
            touch_private(self._settings.path)  # SQLite gives its log and index the same mode
            connection = connect(self._settings)
        except (OSError, sqlite3.Error):
            self._ownership.leave()
            raise
        try:
            prepare(connection, self._settings.path)
            if alone or self._orphans == "keep":
                self._see_to_orphans(connection)
        except Exception:
            self.close(connection)
            raise
        self._ownership.share()
        return connection

    def _see_to_orphans(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        operations = Operations(SqlRecords(connection), self._clock.now())
        if self._orphans == "keep":
            operations.extend_running()
        else:
            operations.requeue_running()
        connection.execute("COMMIT")

    def close(self, connection: sqlite3.Connection) -> None:
        connection.close()
        self._ownership.leave()


class FileOwnership:
    """This process's lock on ``<path>-owners``.

    Every process that has the store open has a shared lock. A process that gets an exclusive lock
    is the only one, so running attempts are left over from a crash. The kernel releases the lock
    whenever a process ends, so the check needs no process id and no heartbeat. The lock needs a
    separate file, because closing a second descriptor of the database would release SQLite's locks.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path.with_name(path.name + "-owners")
        self._timeout_s = timeout_s
        self._descriptor: int | None = None

    def enter(self) -> bool:
        """Take the lock; return True if it is exclusive, which lasts until `share` is called.

        Wait while another process has the exclusive lock and prepares the file. Return False if the
        system or the file system does not support such locks; only leases and deadlines then end
        the attempts of a crashed process.

        Raises:
            StoreError: the other process did not release the exclusive lock in time.
        """
        if sys.platform == "win32":
            return False
        import fcntl  # noqa: PLC0415  no such module on Windows

        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = monotonic() + self._timeout_s
        while True:
            for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                try:
                    fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                except OSError:
                    self.leave()
                    return False
                return kind == fcntl.LOCK_EX
            if monotonic() > end:
                self.leave()
                raise StoreError(
                    f"Store busy: another process has been opening {self._path} for more than "
                    f"{self._timeout_s:g} s; end it or raise store.busy_timeout_s"
                )
            time.sleep(_PAUSE_S)

    def share(self) -> None:
        """Change the lock to a shared one, so that other processes can open the store."""
        if sys.platform == "win32" or self._descriptor is None:
            return
        import fcntl  # noqa: PLC0415  no such module on Windows

        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
