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
from agl_core.store._operations import Operations
from agl_core.store._schema import FileSettings, connect, prepare, store_errors
from agl_core.store._sql import SqlRecords
from agl_core.store._writer import Writer
from agl_core.store.base import BatchingStore, Retention
from agl_core.store.lease import Clock
from agl_core.store.prune import Pruned, prune_file
from agl_core.store.reader import SqliteReader, look_up
from agl_core.store.records import Records

if TYPE_CHECKING:
    from agl_core.store.options import SqliteOptions

T = TypeVar("T")
Orphans = Literal["requeue", "keep"]
_PAUSE_S: Final = 0.01


def make_store(options: SqliteOptions, directory: Path) -> SqliteStore:
    """The store ``sqlite`` of a run in `directory`."""
    return SqliteStore(
        options.file(directory),
        synchronous=options.synchronous,
        busy_timeout_s=options.busy_timeout_s,
        retention=options.retention,
    )


class SqliteStore(BatchingStore):
    """All records in one file. One thread writes, one reads; small work is done on the loop itself.

    What was acknowledged survives the process (``synchronous="normal"``) or also the machine
    (``"full"``). Next to the file are SQLite's ``-wal`` and ``-shm``, and ``-owners``, whose lock
    says whether another process has the store open.

    Several processes may open the file. Writes of a store object wake its own waiters at once;
    those of other processes are seen within a second.

    A crash leaves attempts without a runner. A process that opens the file *alone* ends them as
    LOST and queues their rollouts again at once. If another process has it open, attempts may be
    running there: then leases and deadlines end the dead ones. A server of the store
    (``orphans="keep"``) ends none, since its runners are other processes: it gives every running
    attempt one lease more, and those whose runner is dead lapse.
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
        """Describe the file; `open` creates it and its directory.

        Args:
            path: The database file.
            synchronous: ``full`` waits for the disk at every commit.
            busy_timeout_s: How long to wait for other processes that write.
            retention: ``drop_spans`` deletes the spans of rollouts that were consumed and gives
                their space back piece by piece.
            orphans: What becomes of attempts that run when the file is opened.
            clock: Time for leases and deadlines; the machine's when None.

        Raises:
            ConfigError: `path` names no file.
        """
        super().__init__(retention=retention, clock=clock)
        if str(path) in ("", ":memory:"):
            raise ConfigError(f"store.path={str(path)!r} names no file: use the store 'memory'")
        self._settings = FileSettings(
            path=Path(path), synchronous=synchronous, busy_timeout_s=busy_timeout_s
        )
        self._orphans: Orphans = orphans

    def reader(self) -> SqliteReader:
        """The file to be looked at only; see `agl_core.store.reader.Readable`."""
        return SqliteReader(self._settings)

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Delete spans of final rollouts for good; see `agl_core.store.prune.Prunable`."""
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
        return False  # the writer's thread dealt with orphans while it held the file alone

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
        await asyncio.sleep(0)  # a caller that reads again and again leaves the loop to others
        with self._writer.spared(rows) as connection:
            # What this connection has written or read before, it need not read again.
            if connection is not None:
                return look_up(connection, self._settings, query)
        return await self._in_reader(lambda: look_up(self._reading, self._settings, query))

    async def _in_reader(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, call)


class _File:
    """The file as the writer's thread opens it."""

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
    """One holder's share of ``<path>-owners``.

    Every holder has a shared lock. A holder that gets it exclusively is alone: attempts found
    running are then orphans of a crash. The kernel drops the lock when a process ends, however it ends, so
    no process id or heartbeat has to be trusted. A file of its own is needed: closing a second
    descriptor of the database would drop SQLite's own locks on it.
    """

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path.with_name(path.name + "-owners")
        self._timeout_s = timeout_s
        self._descriptor: int | None = None

    def enter(self) -> bool:
        """Become a holder; True while there is no other, until `share` is called.

        Waits while another holder is alone and prepares the file. False where the system or the
        file system has no such locks: only leases then end dead attempts.

        Raises:
            StoreError: the other holder did not finish in time.
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
        """Let others enter."""
        if sys.platform == "win32" or self._descriptor is None:
            return
        import fcntl  # noqa: PLC0415  no such module on Windows

        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def leave(self) -> None:
        """Stop being a holder; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
