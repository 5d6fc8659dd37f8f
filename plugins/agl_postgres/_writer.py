"""The writer of a store: one thread that commits several operations at once, in order."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg

from agl_core.clocks import monotonic, new_id
from agl_core.errors import StoreError
from agl_core.store import Changes, Operations
from agl_postgres._connect import HeldConnection, Pool
from agl_postgres._errors import as_store_error, is_away, is_conflict, refusal
from agl_postgres._locked import LockedRows
from agl_postgres._rows import SyncConnection

Operation = Callable[[Operations], Any]
AddNotification = Callable[[SyncConnection, Changes], None]

_LARGEST_GROUP: Final = 256
_MOST_CONFLICTS: Final = 50
_MARK: Final = (
    "INSERT INTO agl_writers (id, number) VALUES (%s, %s) "
    "ON CONFLICT (id) DO UPDATE SET number = excluded.number, at = now()"
)
_FORGET: Final = "DELETE FROM agl_writers WHERE id = %s OR at < now() - interval '30 days'"
_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """The ids of what an operation reads and writes, which can be locked before it runs."""

    added: frozenset[str] = frozenset()
    """Rollouts that are new, unless the operation is repeated."""
    rollouts: frozenset[str] = frozenset()
    attempts: frozenset[str] = frozenset()
    queued: int = 0
    """How many rollouts of the queue it may claim."""
    only_spans: bool = False

    @property
    def names(self) -> frozenset[str]:
        return self.added | self.rollouts | self.attempts


@dataclass(slots=True)
class QueuedWrite:
    """A submitted operation with its result."""

    operation: Operation
    future: asyncio.Future[Any]
    touched: Touched | None
    """None if the operation may lock any row; it then has a transaction of its own."""
    value: Any = None
    error: Exception | None = None
    changes: Changes = field(default_factory=Changes)


class _Halfway(Exception):  # noqa: N818  no error of a user
    """An operation failed after its first write: the transaction must be rolled back."""


class CommitThread:
    """A thread that runs operations in the order in which they were submitted.

    All operations that arrived during a transaction share the next one, as far as the rows that
    they touch are known beforehand: these are locked first, in one order for all processes, so
    that no two transactions wait for each other. Another operation has a transaction of its own.
    One round trip to the server reads what they need, a second one writes and commits.

    A transaction that conflicts with another process runs again. One that lost its connection runs
    again on a new one, for at most `retry_s`. Every transaction writes its number into the
    writer's row of ``agl_writers``: if the connection is lost during a commit, that row says
    whether it took effect, so that nothing is written twice. (The id of a transaction does not: a
    server that crashed may give it to another one.)
    """

    def __init__(
        self,
        pool: Pool,
        *,
        now: Callable[[], float],
        announce: Callable[[Changes], None],
        notify: AddNotification,
        delivered: Callable[[Sequence[QueuedWrite]], None],
        retry_s: float,
    ) -> None:
        """Build a writer.

        Args:
            pool: The connections, of which it uses one.
            now: Returns Unix seconds; called once per operation.
            announce: Called on the loop with the changes of each operation that committed.
            notify: Adds to a transaction what wakes other processes.
            delivered: Called on the loop with the operations whose futures are done.
            retry_s: How long to try while the server is away.
        """
        self._pool = pool
        self._now = now
        self._announce = announce
        self._notify = notify
        self._delivered = delivered
        self._retry_s = retry_s
        self._jobs: queue.SimpleQueue[QueuedWrite | None] = queue.SimpleQueue()
        self._coming: list[QueuedWrite] = []
        """Operations of the tasks that the loop runs just now."""
        self._ahead: QueuedWrite | None = None
        self._id = new_id("wr")
        self._number = 0
        """Number of the last transaction that wrote."""
        self._connection = HeldConnection(pool, few_statements=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._main, name="agl-store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: QueuedWrite) -> None:
        """Queue an operation; its future has the result once the writes are durable.

        The thread gets it after the tasks that are ready to run now, which often submit others.
        """
        if not self._coming:
            self._loop.call_soon(self._pass_on)
        self._coming.append(job)

    def _pass_on(self) -> None:
        for job in self._coming:
            self._jobs.put(job)
        self._coming.clear()

    async def stop(self) -> None:
        """Commit the submitted operations and give the connection back."""
        self._pass_on()
        self._jobs.put(None)
        await asyncio.shield(self._ended)
        self._thread.join()

    def _main(self) -> None:
        try:
            while group := self._next_group():
                self._commit(group)
                self._call_on_loop(self._deliver, group)
            self._forget()
        finally:
            self._connection.give_back()
            self._call_on_loop(self._ended.set_result, None)

    def _forget(self) -> None:
        """Delete this writer's mark, and those of writers that ended long ago by a crash."""
        if self._number and self._connection.held:
            with contextlib.suppress(psycopg.Error):
                self._connection.get().execute(_FORGET, [self._id])

    def _next_group(self) -> list[QueuedWrite]:
        """Wait for jobs; return those that share a transaction, none if the writer was stopped."""
        group: list[QueuedWrite] = []
        while len(group) < _LARGEST_GROUP and (not group or self._more()):
            job = self._ahead or self._jobs.get()
            self._ahead = None
            if job is None:
                if group:
                    self._jobs.put(None)  # ends the thread after this group
                return group
            if job.touched is None:
                if group:
                    self._ahead = job
                    return group
                return [job]
            group.append(job)
        return group

    def _more(self) -> bool:
        return self._ahead is not None or not self._jobs.empty()

    def _commit(self, group: Sequence[QueuedWrite]) -> None:
        """Run jobs in one transaction, or each in one if it fails, and set values or errors."""
        try:
            self._commit_together(group)
        except (psycopg.Error, StoreError, _Halfway, MemoryError) as error:
            if len(group) > 1 and not self._out_of_reach(error):
                for job in group:
                    self._commit([job])
                return
            for job in group:
                job.changes = Changes()
                if isinstance(error, psycopg.Error):
                    job.error = as_store_error(error, self._pool.server.shown)
                elif not isinstance(error, _Halfway):
                    job.error = error

    def _out_of_reach(self, error: Exception) -> bool:
        return isinstance(error, StoreError) or (
            isinstance(error, psycopg.Error) and (is_away(error) or bool(refusal(error)))
        )

    def _commit_together(self, group: Sequence[QueuedWrite]) -> None:
        """Run the transaction until it committed or cannot.

        Raises:
            psycopg.Error: it failed, or the server was away for too long.
            StoreError: no connection was free, or it is unknown whether it committed.
            _Halfway: the job failed, and its writes were rolled back.
        """
        end, pause_s, conflicts = monotonic() + self._retry_s, _PAUSE_S, 0
        while True:
            try:
                # The first conflict may be a rollout or a span that is stored already.
                return self._transaction(group, end, expect_repeated=conflicts > 0)
            except psycopg.Error as error:
                conflicts += is_conflict(error)
                if is_conflict(error) and conflicts <= _MOST_CONFLICTS:
                    continue
                gone = is_away(error) and not refusal(error)
                if not gone or monotonic() + pause_s > end:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _transaction(
        self, group: Sequence[QueuedWrite], end: float, *, expect_repeated: bool
    ) -> None:
        connection = self._connection.get()
        number = self._number
        try:
            with connection.pipeline():
                self._run(connection, group, expect_repeated=expect_repeated)
        except psycopg.Error as error:
            self._undo(connection, error)
            if not (self._number != number and is_away(error) and self._committed(end)):
                raise
        except BaseException as error:
            self._undo(connection, error)
            raise

    def _undo(self, connection: SyncConnection, error: BaseException) -> None:
        if isinstance(error, psycopg.Error):
            # Also because the driver believes that the server prepared statements, which it did
            # not where an earlier statement of the pipeline failed.
            self._connection.give_back(broken=True)
            return
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            self._connection.give_back(broken=True)

    def _run(
        self, connection: SyncConnection, group: Sequence[QueuedWrite], *, expect_repeated: bool
    ) -> None:
        """Send the jobs' statements in a transaction, and its end.

        The server skips what follows a statement that failed, also the ``COMMIT``.
        """
        rows = LockedRows(connection, expect_repeated=expect_repeated)
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        touched = [job.touched for job in group if job.touched]
        rows.prefetch(
            added={one for each in touched for one in each.added},
            rollouts={one for each in touched for one in each.rollouts},
            attempts={one for each in touched for one in each.attempts},
            queued=sum(each.queued for each in touched),
        )
        for job in group:
            self._attempt(rows, job)
        # Claims of others may have skipped them while they were locked.
        group[0].changes.queued += rows.left_queued()
        if rows.writes:
            rows.flush()
            if rows.span_writes == rows.writes:
                # A later commit that waits for the disk makes these spans durable too.
                connection.execute("SET LOCAL synchronous_commit = off")
            self._number += 1
            connection.execute(_MARK, [self._id, self._number])
        self._notify(connection, _joined(group))
        connection.execute("COMMIT")

    def _attempt(self, rows: LockedRows, job: QueuedWrite) -> None:
        """Run one operation.

        Raises:
            psycopg.Error: a statement failed, possibly one of an earlier operation.
            _Halfway: the operation failed after its first write.
        """
        written = rows.writes
        operations = Operations(rows, self._now())
        job.error, job.changes = None, Changes()
        try:
            job.value = job.operation(operations)
        except psycopg.Error:
            raise
        except Exception as error:
            job.error = error
            if rows.writes != written:
                raise _Halfway from error
            return
        job.changes = operations.changes

    def _committed(self, end: float) -> bool:
        """Return whether the last transaction committed, whose connection ended meanwhile.

        Raises:
            StoreError: the server was away for too long to find out.
        """
        while True:
            try:
                # The lock waits for a server process that still commits.
                marked = self._connection.get().execute(
                    "SELECT number FROM agl_writers WHERE id = %s FOR UPDATE", [self._id]
                )
                return marked.fetchall() == [(self._number,)]
            except psycopg.Error:
                self._connection.give_back(broken=True)
                if monotonic() > end:
                    raise StoreError(
                        f"The store at {self._pool.server.shown.address} was away for more than "
                        f"{self._retry_s:g} s, and its last write may or may not have been kept: "
                        f"repeat it once the server runs"
                    ) from None
            time.sleep(_PAUSE_S)

    def _deliver(self, group: Sequence[QueuedWrite]) -> None:
        for job in group:
            self._announce(job.changes)
            if job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.value)
        self._delivered(group)

    def _call_on_loop(self, callback: Callable[..., None], value: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, value)
        except RuntimeError:
            # The loop is closed, so no caller waits.
            return


def _joined(group: Sequence[QueuedWrite]) -> Changes:
    """Return the changes of all jobs."""
    return Changes(
        queued=sum(job.changes.queued for job in group),
        final=[one for job in group for one in job.changes.final],
        due_at=min(job.changes.due_at for job in group),
    )
