"""The reads of a store, in threads."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar, cast

import psycopg
from agl_stores import unkey

from agl_core.clocks import monotonic
from agl_core.store import Records
from agl_core.types import Rollout
from agl_postgres._connect import HeldConnection, Pool, connection_errors
from agl_postgres._errors import is_away, is_conflict, refusal
from agl_postgres._options import PostgresOptions
from agl_postgres._rows import (
    READ_ROLLOUTS,
    READ_SPANS,
    Rows,
    SyncConnection,
    as_rollout,
    keys,
)

T = TypeVar("T")
Query = Callable[[Records], Any]

_PAUSE_S: Final = 0.2
_FEW: Final = 64
"""Rows up to which a read shares its statements with others."""
_MOST_TOGETHER: Final = 64


class _Asked(BaseException):
    """A query asked for rows that it was not given."""

    def __init__(self, rollouts: Sequence[str] = (), spans: Sequence[str] = ()) -> None:
        super().__init__()
        self.rollouts = rollouts
        self.spans = spans


@dataclass(slots=True)
class _Answers:
    """What a shared statement found, given to each query as `Records`.

    Everything else that a query asks for raises `_Asked`.
    """

    rollout_rows: Mapping[str, Sequence[Any]]
    span_rows: Mapping[str, Sequence[list[bytes]]]
    known: frozenset[tuple[str, str]]
    """Kinds and ids that were asked for."""

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        if any(("rollouts", one) not in self.known for one in ids):
            raise _Asked(rollouts=ids)
        found = {one: self.rollout_rows[one] for one in ids if one in self.rollout_rows}
        return {one: as_rollout(*columns) for one, columns in found.items()}

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        if attempt_id is not None:
            raise _Asked
        if any(("spans", one) not in self.known for one in rollout_ids):
            raise _Asked(spans=rollout_ids)
        for one in sorted(set(rollout_ids)):
            yield from self.span_rows.get(one, ())

    def __getattr__(self, name: str) -> Any:
        raise _Asked


_NOTHING: Final = _Answers({}, {}, frozenset())


@dataclass(slots=True)
class _Read:
    """A query that waits for its turn."""

    query: Query
    asked: _Asked
    future: asyncio.Future[Any]
    value: Any = None
    error: Exception | None = None


class Readings:
    """Reads in threads, one connection of the pool each.

    Queries for one rollout or a few are merged: those that arrived while others were read share the
    next statement, as the operations of the writer share a transaction.
    """

    def __init__(self, pool: Pool, options: PostgresOptions) -> None:
        self._pool = pool
        self._retry_s = options.retry_s
        self._threads = ThreadPoolExecutor(options.pool_max, thread_name_prefix="agl-store-reader")
        self._lock = threading.Lock()
        self._waiting: list[_Read] = []
        self._busy = False
        self._start: asyncio.Handle | None = None
        self._keep = options.pool_is_large
        self._connection = HeldConnection(pool, few_statements=self._keep)
        """The connection for merged queries."""

    async def run(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        """Run a query on a snapshot.

        Args:
            query: The query; it may run more than once.
            rows: About how many rows it reads.
        """
        loop = asyncio.get_running_loop()
        asked = _question(query) if rows <= _FEW else None
        if asked is None:
            return await loop.run_in_executor(self._threads, self._read, query)
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            self._waiting.append(_Read(query, asked, future))
            start, self._busy = not self._busy, True
        if start:
            # After the tasks that are ready to run now, which often ask too.
            self._start = loop.call_soon(self._read_in_thread, loop)
        return await future

    def _read_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        self._start = None
        self._threads.submit(self._read_waiting, loop)

    def stop(self) -> None:
        if self._start is not None:
            self._start.cancel()
            self._read_in_thread(asyncio.get_running_loop())
        self._threads.shutdown()
        self._connection.give_back()

    def _read_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read until no query waits."""
        while True:
            with self._lock:
                reads = self._waiting[:_MOST_TOGETHER]
                del self._waiting[:_MOST_TOGETHER]
                self._busy = bool(reads)
            if not reads:
                return
            self._read_together(reads)
            try:
                loop.call_soon_threadsafe(_deliver, reads)
            except RuntimeError:
                continue  # The loop is closed, so no caller waits.

    def _read_together(self, reads: Sequence[_Read]) -> None:
        end = monotonic() + self._retry_s
        answers = _NOTHING
        try:
            answers = self._answers(reads)
        except psycopg.Error:
            answers = _NOTHING  # each query is tried alone, and gets an error of its own
        except Exception as error:  # noqa: BLE001  raised where the queries were made
            for each in reads:
                each.error = error
            return
        for each in reads:
            try:
                try:
                    each.value = each.query(cast("Records", answers))
                except _Asked:
                    each.value = self._read(each.query, end)
            except Exception as error:  # noqa: BLE001  raised where the query was made
                each.error = error

    def _answers(self, reads: Sequence[_Read]) -> _Answers:
        rollouts = {one for each in reads for one in each.asked.rollouts}
        spans = {one for each in reads for one in each.asked.spans}
        known = {("rollouts", one) for one in rollouts} | {("spans", one) for one in spans}
        connection = self._connection.get()
        broken = True
        try:
            # Each statement has a snapshot of its own, and each query needs one statement only.
            with connection.pipeline():
                found = _send(connection, READ_ROLLOUTS + "id = ANY(%s)", rollouts)
                bodies = _send(connection, READ_SPANS, spans)
                answers = _Answers(
                    {unkey(row[0]): row[1:] for row in found()},
                    _grouped(bodies()),
                    frozenset(known),
                )
            broken = False
            return answers
        finally:
            if broken or not self._keep:
                self._connection.give_back(broken=broken)

    def _read(self, query: Callable[[Records], T], end: float | None = None) -> T:
        if end is None:
            end = monotonic() + self._retry_s
        with connection_errors(self._pool.server.shown):
            while True:
                try:
                    return self._snapshot(query)
                except psycopg.Error as error:
                    passing = is_conflict(error) or (is_away(error) and not refusal(error))
                    if not passing or monotonic() + _PAUSE_S > end:
                        raise
                time.sleep(_PAUSE_S)

    def _snapshot(self, query: Callable[[Records], T]) -> T:
        connection = self._pool.take()
        broken = False
        try:
            with connection.pipeline():
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                value = query(Rows(connection))
                connection.execute("COMMIT")
        except BaseException as error:
            broken = isinstance(error, psycopg.Error)  # see CommitThread
            if not broken:
                connection.execute("ROLLBACK")
            raise
        else:
            return value
        finally:
            self._pool.give_back(connection, broken=broken)


def _question(query: Query) -> _Asked | None:
    """Return what a query asks for first; None if it is not of a kind that is merged."""
    try:
        query(cast("Records", _NOTHING))
    except _Asked as asked:
        return asked if asked.rollouts or asked.spans else None
    return None


def _send(
    connection: SyncConnection, statement: Any, ids: set[str]
) -> Callable[[], list[tuple[Any, ...]]]:
    """Send a statement, if for any ids; return a function that waits for its rows."""
    if not ids:
        return list
    return connection.execute(statement, [keys(ids)], binary=True).fetchall


def _grouped(found: Sequence[tuple[Any, ...]]) -> dict[str, list[list[bytes]]]:
    """Return the spans' bodies by rollout, in a list for each attempt."""
    spans: dict[str, list[list[bytes]]] = {}
    for (name, _), rows in groupby(found, key=lambda row: row[:2]):
        spans.setdefault(unkey(name), []).append([row[2] for row in rows])
    return spans


def _deliver(reads: Sequence[_Read]) -> None:
    for each in reads:
        if each.future.done():
            continue
        if each.error is not None:
            each.future.set_exception(each.error)
        else:
            each.future.set_result(each.value)
