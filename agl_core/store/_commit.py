"""Commits of several operations in one transaction, and checkpoints of the write-ahead log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from agl_core.store._operations import Changes, Operations
from agl_core.store._schema import FileSettings, as_store_error, connect, roll_back
from agl_core.store._sql import SqlRecords

Operation = Callable[[Operations], Any]

_log = logging.getLogger(__name__)

_ROWS: Final = 512
"""Number of rows written since the last checkpoint after which another one starts."""


@dataclass(slots=True)
class Job:
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

    def run(self, jobs: Sequence[Job], *, patient: bool = True) -> bool:
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

    def _attempt(self, job: Job) -> bool:
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

    def _fail(self, job: Job, error: Exception) -> None:
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
