"""The writer of a store's file, which commits several operations in one transaction."""

from __future__ import annotations

import asyncio
import math
import queue
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from agl_core.clocks import monotonic
from agl_core.errors import AglError
from agl_core.store._commit import GroupCommit, Job, Operation, WalCheckpointer
from agl_core.store._operations import Changes
from agl_core.store._schema import FileSettings, as_store_error, give_back_pages

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
        self._arrived: list[Job] = []
        self._under_way = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
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
        self._arrived.append(Job(operation, future, rows))
        return future

    async def stop(self) -> None:
        """Commit the submitted operations and close the file."""
        while self._arrived:
            self._commit_arrived()
        self._jobs.put(None)
        await self._checkpoints.stop()
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

    def _fitting(self) -> list[Job]:
        """Return the first jobs, as many as the loop may do without a break."""
        rows = 0.0
        for count, job in enumerate(self._arrived):
            rows += job.rows
            if not self._throttle.admits(rows):
                return self._arrived[:count]
        return self._arrived

    def _commit_here(self, jobs: Sequence[Job]) -> bool:
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

    def _next_group(self, connection: sqlite3.Connection) -> tuple[list[Job], bool]:
        """Wait for jobs; return all queued ones, and False if the writer was stopped."""
        while self._freed and self._jobs.empty():
            self._freed = self._reclaim(connection)
        group: list[Job] = []
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

    def _deliver_later(self, group: Sequence[Job]) -> None:
        self._under_way -= len(group)
        self._deliver(group)

    def _deliver(self, group: Sequence[Job]) -> None:
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
