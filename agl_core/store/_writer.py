"""The writer of a store's file: commits of several operations at once, and log checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import queue
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from agl_core.clocks import monotonic
from agl_core.errors import AglError
from agl_core.store._operations import Changes, Operations
from agl_core.store._sql import (
    FileSettings,
    SqlRecords,
    as_store_error,
    connect,
    give_back_pages,
    roll_back,
)

Operation = Callable[[Operations], Any]

_log = logging.getLogger(__name__)

_ROWS: Final = 512
"""Number of rows written since the last checkpoint after which another one starts."""


@dataclass(slots=True)
class WriteJob:
    """One submitted operation with its result."""

    operation: Operation
    future: asyncio.Future[Any]
    rows: float = math.inf
    """Estimated number of rows written."""
    value: Any = None
    error: Exception | None = None
    changes: Changes | None = None
    """Changes of the operation; None unless they are durable."""


class GroupCommit:
    """The execution of jobs in transactions on the writing connection."""

    def __init__(
        self, connection: sqlite3.Connection, settings: FileSettings, now: Callable[[], float]
    ) -> None:
        self._sql = connection
        self._settings = settings
        self._now = now
        self._records = SqlRecords(connection)
        self._seen_version = -1
        self._patient = True

    def run(self, jobs: Sequence[WriteJob], *, patient: bool = True) -> bool:
        """Run jobs in one transaction and set `value` or `error` of each; values are durable.

        A job that fails before its first write does not affect the others. If a job fails after a
        write, the transaction is rolled back; several jobs then run again, each in a transaction.

        Args:
            jobs: The jobs, in the order in which they run.
            patient: Whether to wait while another process writes, and to run jobs again after a
                rollback. If False, the transaction is abandoned in these cases.

        Returns:
            Whether the jobs were done; False only if not `patient`.
        """
        try:
            if self._sql.in_transaction:
                self._roll_back()  # an earlier rollback failed
            if not self._begin(patient=patient):
                return False
            self._forget_what_others_changed()
            if all(self._attempt(job) for job in jobs):
                self._sql.execute("COMMIT")
                return True
            self._roll_back()
        except (sqlite3.Error, MemoryError) as error:
            for job in jobs:
                self._fail(job, error)
            with suppress(sqlite3.Error, MemoryError):
                self._roll_back()
            return True
        if len(jobs) > 1 and patient:
            for job in jobs:
                self.run([job])
        return len(jobs) == 1 or patient

    def _begin(self, *, patient: bool) -> bool:
        if patient is not self._patient:
            wait_ms = round(1000 * self._settings.busy_timeout_s) if patient else 0
            self._sql.execute(f"PRAGMA busy_timeout = {wait_ms}")
            self._patient = patient
        try:
            self._sql.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            if patient:
                raise
            return False
        return True

    def _attempt(self, job: WriteJob) -> bool:
        """Run one operation; return False if the transaction must be rolled back."""
        written = self._sql.total_changes
        operations = Operations(self._records, self._now())
        try:
            job.value = job.operation(operations)
        except Exception as error:  # noqa: BLE001  raised again where the caller awaits it
            self._fail(job, error)
            return self._sql.total_changes == written and not isinstance(
                error, sqlite3.Error | MemoryError
            )
        job.error = None
        job.changes = operations.changes
        return True

    def _fail(self, job: WriteJob, error: Exception) -> None:
        foreign = isinstance(error, sqlite3.Error | MemoryError)
        job.error = as_store_error(error, self._settings) if foreign else error
        job.changes = None

    def _roll_back(self) -> None:
        self._records.forget()
        roll_back(self._sql)

    def _forget_what_others_changed(self) -> None:
        (version,) = self._sql.execute("PRAGMA data_version").fetchone()
        if version != self._seen_version:
            self._seen_version = version
            self._records.forget()


class WalCheckpointer:
    """Checkpoints of the write-ahead log in a separate thread with a separate connection.

    A checkpoint waits for the disk. By default, SQLite runs it inside the commit that exceeds the
    log's limit. Checkpoints in parallel with commits leave that commit little to do.
    """

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agl-store-checkpoints")
        self._rows = 0.0
        self._running: asyncio.Future[None] | None = None
        self._stopped = False

    def written(self, rows: float) -> None:
        """Record that about this many rows were committed; start a checkpoint if it is time."""
        self._rows += rows
        if self._running is None:
            self._begin()

    def _begin(self) -> None:
        if self._rows >= _ROWS and not self._stopped:
            self._rows = 0.0
            loop = asyncio.get_running_loop()
            self._running = loop.run_in_executor(self._thread, self._checkpoint)
            self._running.add_done_callback(self._end)

    def _end(self, checkpoint: asyncio.Future[None]) -> None:
        del checkpoint
        self._running = None
        self._begin()

    async def stop(self) -> None:
        """Wait for a running checkpoint and start no other; closing the file does the last one."""
        self._stopped = True
        if self._running is not None:
            await asyncio.wait([self._running])
        self._thread.shutdown()

    def _checkpoint(self) -> None:
        try:
            with contextlib.closing(connect(self._settings)) as connection:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            # The log only stays longer: SQLite reads it until a later checkpoint succeeds.
            _log.warning("No checkpoint of %s: %s", self._settings.path, error)


_LARGEST_GROUP: Final = 256
_TURN_S: Final = 0.005
"""Longest time that one piece of work may block the event loop, in seconds."""
_ROW_S: Final = 20e-6
"""Assumed seconds per row until there is a measurement."""
_COMMIT_ROWS: Final = 16
"""Fixed cost of a transaction, expressed as a number of rows."""
_DECAY: Final = 0.9
"""Factor applied to the sum of earlier measurements when one is added."""
_STALL_S: Final = 0.05
_MOST_ROWS: Final = 512
"""On the loop at a time, as later rows may be larger than the measured ones."""
_REST: Final = 10
"""After a stall, no work is done on the event loop for this many times the stall's duration."""


class Medium(Protocol):
    """An object that opens and closes the file, in the writer thread."""

    def open(self) -> sqlite3.Connection: ...

    def close(self, connection: sqlite3.Connection) -> None: ...


class Throttle:
    """A limit for work on the event loop, by the time that the work is expected to take.

    Passing work to a thread and its result back usually takes longer than the work, so work of up
    to `_TURN_S` is done on the loop, estimated by the measured time per row. A stalled disk blocks
    the loop, so after a stall all work goes to the thread for some time.
    """

    def __init__(self, *, ever: bool = True) -> None:
        """Start with an assumed time per row.

        Args:
            ever: If False, no work is admitted.
        """
        self._resumes_at = 0.0 if ever else math.inf
        self._rows = float(_COMMIT_ROWS)
        self._seconds = _COMMIT_ROWS * _ROW_S

    def admits(self, rows: float) -> bool:
        """Return whether work on about this many rows may be done on the loop now."""
        expected_s = (rows + _COMMIT_ROWS) * self._seconds / self._rows
        fits = rows <= _MOST_ROWS and expected_s <= _TURN_S
        return fits and monotonic() >= self._resumes_at

    def took(self, seconds: float) -> None:
        """Pause work on the loop after some that stalled it."""
        if seconds > _STALL_S:
            self._resumes_at = max(self._resumes_at, monotonic() + _REST * seconds)

    def measured(self, rows: float, seconds: float) -> None:
        """Add a measurement: the seconds that a commit of this many rows took on the loop.

        Reads are no measurement, as their number of rows is only an upper bound.
        """
        if seconds > _STALL_S:
            return
        self._rows = _DECAY * self._rows + rows + _COMMIT_ROWS
        self._seconds = _DECAY * self._seconds + seconds


class Writer:
    """The writer of a file: commits all jobs submitted since its last commit in one transaction.

    Callers share the cost of a commit, and get their results after it. Jobs that are short enough
    run on the event loop, as long as no job is in the thread. A longer job, or one that must wait
    for another process, runs in the thread, and so do all later jobs until the thread is idle.
    """

    def __init__(
        self,
        medium: Medium,
        settings: FileSettings,
        *,
        now: Callable[[], float],
        announce: Callable[[Changes], None],
    ) -> None:
        """Build a writer.

        Args:
            medium: Opens the file.
            settings: Path and timeouts of the file.
            now: Returns Unix seconds; called once per operation.
            announce: Called on the loop with the changes of each durable operation.
        """
        self._medium = medium
        self._settings = settings
        self._now = now
        self._announce = announce
        self._throttle = Throttle(ever=settings.synchronous == "normal")
        self._checkpoints = WalCheckpointer(settings)
        self._arrived: list[WriteJob] = []
        self._under_way = 0
        self._jobs: queue.SimpleQueue[WriteJob | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._freed = False

    async def start(self) -> None:
        """Open the file.

        Raises:
            StoreError: the file cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        opened: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._main, args=(opened,), name="agl-store-writer", daemon=True
        )
        self._thread.start()
        await asyncio.shield(opened)

    def submit(self, operation: Operation, *, rows: float) -> asyncio.Future[Any]:
        """Queue an operation; the future has its result once the writes are durable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._arrived:
            self._loop.call_soon(self._commit_arrived)
        self._arrived.append(WriteJob(operation, future, rows))
        return future

    async def stop(self) -> None:
        """Commit the submitted operations and close the file."""
        while self._arrived:
            self._commit_arrived()
        # Of two connections that close at the same time, neither would empty the log.
        await self._checkpoints.stop()
        self._jobs.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _commit_arrived(self) -> None:
        """Commit the jobs that are short enough for the loop, or pass all jobs to the thread."""
        jobs = self._fitting()
        self._arrived = self._arrived[len(jobs) :]
        if not (jobs and self._commit_here(jobs)):
            jobs, self._arrived = [*jobs, *self._arrived], []
            self._under_way += len(jobs)
            for job in jobs:
                self._jobs.put(job)
            return
        if self._arrived:
            self._loop.call_soon(self._commit_arrived)
        self._deliver(jobs)

    def _fitting(self) -> list[WriteJob]:
        """Return the first jobs, as many as the loop may do without a break."""
        rows = 0.0
        for count, job in enumerate(self._arrived):
            rows += job.rows
            if not self._throttle.admits(rows):
                return self._arrived[:count]
        return self._arrived

    def _commit_here(self, jobs: Sequence[WriteJob]) -> bool:
        """Commit on the loop; return False if the thread must do it."""
        rows = sum(job.rows for job in jobs)
        begin = monotonic()
        with self.spared(rows) as connection:
            done = connection is not None and self._transaction.run(jobs, patient=False)
        if done:
            self._throttle.measured(rows, monotonic() - begin)
        return done

    @contextmanager
    def spared(self, rows: float) -> Generator[sqlite3.Connection | None]:
        """Yield the connection for work on about `rows` rows on the loop; None to use a thread."""
        free = not self._under_way and self._throttle.admits(rows)
        if not (free and self._writing.acquire(blocking=False)):
            yield None
            return
        begin = monotonic()
        try:
            yield self._connection
        finally:
            self._writing.release()
            self._throttle.took(monotonic() - begin)

    def _main(self, opened: asyncio.Future[None]) -> None:
        try:
            connection = self._medium.open()
        except (AglError, OSError, sqlite3.Error) as error:
            known = isinstance(error, AglError)
            failure = error if known else as_store_error(error, self._settings)
            self._call_on_loop(opened.set_exception, failure)
            return
        self._connection = connection
        self._transaction = GroupCommit(connection, self._settings, self._now)
        self._call_on_loop(opened.set_result, None)
        try:
            self._serve(connection)
        finally:
            try:
                self._medium.close(connection)
            finally:
                self._call_on_loop(self._ended.set_result, None)

    def _serve(self, connection: sqlite3.Connection) -> None:
        more = True
        while more:
            group, more = self._next_group(connection)
            if group:
                with self._writing:
                    self._transaction.run(group)
                self._freed |= any(job.changes and job.changes.freed for job in group)
                self._call_on_loop(self._deliver_later, group)

    def _next_group(self, connection: sqlite3.Connection) -> tuple[list[WriteJob], bool]:
        """Wait for jobs; return all queued ones, and False if the writer was stopped."""
        while self._freed and self._jobs.empty():
            self._freed = self._reclaim(connection)
        group: list[WriteJob] = []
        job = self._jobs.get()
        while job is not None:
            group.append(job)
            if len(group) == _LARGEST_GROUP or self._jobs.empty():
                return group, True
            job = self._jobs.get()
        return group, False

    def _reclaim(self, connection: sqlite3.Connection) -> bool:
        try:
            return give_back_pages(connection)
        except sqlite3.Error:
            return False

    def _deliver_later(self, group: Sequence[WriteJob]) -> None:
        self._under_way -= len(group)
        self._deliver(group)

    def _deliver(self, group: Sequence[WriteJob]) -> None:
        self._checkpoints.written(sum(job.rows for job in group))
        for job in group:
            if job.changes is not None:
                self._announce(job.changes)
            if job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.value)

    def _call_on_loop(self, callback: Callable[..., None], value: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # The loop is closed, so no caller waits.
            return
