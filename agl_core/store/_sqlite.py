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
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from agl_core.clocks import monotonic
from agl_core.errors import ConfigError, StoreError
from agl_core.files import make_private_directory, touch_private
from agl_core.store._base import BatchingStore, Retention
from agl_core.store._lease import Clock
from agl_core.store._operations import Operations
from agl_core.store._reader import Pruned, SqliteReader, look_up, prune_file
from agl_core.store._records import Records
from agl_core.store._sql import FileSettings, SqlRecords, connect, prepare, store_errors
from agl_core.store._writer import Writer

if TYPE_CHECKING:
    from agl_core.store.options import SqliteOptions

T = TypeVar("T")
Orphans = Literal["requeue", "keep"]
_PAUSE_S: Final = 0.01


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
        """Return a read-only store on the same file; see `agl_core.store._reader.Readable`."""
        return SqliteReader(self._settings)

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Permanently delete spans of final rollouts; see `agl_core.store._reader.Prunable`."""
        ids = list(rollout_ids)
        return await asyncio.to_thread(prune_file, self._settings, ids, dry_run=dry_run)

    async def connect(self) -> bool:
        self._writer = Writer(
            _File(self._settings, self._clock, self._orphans),
            self._settings,
            now=self._clock.now,
            announce=self.announce,
        )
        await self._writer.start()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="agl-store-reader")
        try:
            self._reading = await self._in_reader(self._connect_reader)
        except StoreError:
            self._reader.shutdown()
            await self._writer.stop()
            raise
        return False  # the writer thread handled orphans while it held the exclusive lock

    def _connect_reader(self) -> sqlite3.Connection:
        with store_errors(self._settings):
            return connect(self._settings, read_only=True)

    async def disconnect(self) -> None:
        await self._in_reader(self._reading.close)
        self._reader.shutdown()
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
        return await self._in_reader(lambda: look_up(self._reading, self._settings, query))

    async def _in_reader(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, call)


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
