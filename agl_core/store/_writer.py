"""The one place that writes to a store's file, a whole group of operations per commit."""

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
"""Longest that one piece of work should keep the loop."""
_ROW_S: Final = 20e-6
"""Time per row before any was measured."""
_COMMIT_ROWS: Final = 16
"""What a transaction costs beside its rows, in rows."""
_DECAY: Final = 0.9
"""Weight of all earlier measurements when another is added."""
_STALL_S: Final = 0.05
_REST: Final = 10
"""The loop spends at most one part in so many of its time on a stalled disk."""


class Medium(Protocol):
    """Opens and closes the file, in the writer's thread."""

    def open(self) -> sqlite3.Connection: ...

    def close(self, connection: sqlite3.Connection) -> None: ...


class Throttle:
    """Admits work to the event loop by the time that it is expected to take.

    Handing work to a thread and its result back costs more than most of it does, so work is done on
    the loop up to `_TURN_S` at a time, by the measured time per row. A disk may stall, and then
    nothing else on the loop runs: after a stall everything goes to the thread for a while.
    """

    def __init__(self, *, ever: bool = True) -> None:
        """Start with an assumed time per row.

        Args:
            ever: False admits nothing.
        """
        self._resumes_at = 0.0 if ever else math.inf
        self._rows = float(_COMMIT_ROWS)
        self._seconds = _COMMIT_ROWS * _ROW_S

    def admits(self, rows: float) -> bool:
        """Whether work on about so many rows may be done on the loop now."""
        expected_s = (rows + _COMMIT_ROWS) * self._seconds / self._rows
        return expected_s <= _TURN_S and monotonic() >= self._resumes_at

    def measured(self, rows: float, seconds: float) -> None:
        """Add the time that work on so many rows took on the loop."""
        if seconds > _STALL_S:
            self._resumes_at = max(self._resumes_at, monotonic() + _REST * seconds)
            return
        self._rows = _DECAY * self._rows + rows + _COMMIT_ROWS
        self._seconds = _DECAY * self._seconds + seconds


class Writer:
    """Commits the jobs submitted since its last commit in one transaction.

    Callers share the cost of a commit, and none is answered before it. Jobs that fit into a turn of
    the event loop are done there, as long as none is in the thread; a larger job, or one that has to
    wait for another process, is done in the thread, and so are those after it.
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
            settings: For messages of errors.
            now: Unix seconds, asked once per operation.
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
            StoreError: it cannot be used.
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
        """Queue a transaction; the future has its value once that is durable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._arrived:
            self._loop.call_soon(self._commit_arrived)
        self._arrived.append(Job(operation, future, rows))
        return future

    async def stop(self) -> None:
        """Commit what was submitted and close the file."""
        while self._arrived:
            self._commit_arrived()
        self._jobs.put(None)
        await self._checkpoints.stop()
        await asyncio.shield(self._ended)
        self._thread.join()

    def _commit_arrived(self) -> None:
        """Commit the jobs that fit into one turn of the loop, or leave all of them to the thread."""
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
        """The first jobs, as many as the loop may do at once."""
        rows = 0.0
        for count, job in enumerate(self._arrived):
            rows += job.rows
            if not self._throttle.admits(rows):
                return self._arrived[:count]
        return self._arrived

    def _commit_here(self, jobs: Sequence[Job]) -> bool:
        """Commit on the loop; False when the thread has to."""
        with self.spared(sum(job.rows for job in jobs)) as connection:
            return connection is not None and self._transaction.run(jobs, patient=False)

    @contextmanager
    def spared(self, rows: float) -> Generator[sqlite3.Connection | None]:
        """The connection, for work on about so many rows here on the loop; None: leave it."""
        free = not self._under_way and self._throttle.admits(rows)
        if not (free and self._writing.acquire(blocking=False)):
            yield None
            return
        begin = monotonic()
        try:
            yield self._connection
        finally:
            self._writing.release()
            self._throttle.measured(rows, monotonic() - begin)

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
        """Wait for work; returns all there is, and whether there may be more."""
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
            # The loop is closed, and with it every caller that waits.
            return
