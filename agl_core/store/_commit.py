"""A group of operations in one transaction, each isolated from the failure of the others."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agl_core.store._operations import Changes, Operations
from agl_core.store._schema import FileSettings, as_store_error, roll_back
from agl_core.store._sql import SqlRecords

Operation = Callable[[Operations], Any]


@dataclass(slots=True)
class Job:
    """One operation on its way to the file and back."""

    operation: Operation
    future: asyncio.Future[Any]
    rows: float = math.inf
    """About how many it writes."""
    value: Any = None
    error: Exception | None = None
    changes: Changes | None = None
    """None unless it is durable."""


class GroupCommit:
    """Runs jobs on the one connection that writes."""

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
        """Fill in value or error of every job; what has a value is durable.

        A job that fails before it wrote leaves the transaction as it was. One that fails halfway
        has the whole group rolled back and run again, each job on its own.

        Args:
            jobs: Run in this order.
            patient: Wait while another process writes, and run a group again; otherwise nothing
                is done in these cases, and False returned.
        """
        try:
            if self._sql.in_transaction:
                self._roll_back()  # what could not be undone when it failed
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
        """Run one operation; False when it left the transaction unusable."""
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
