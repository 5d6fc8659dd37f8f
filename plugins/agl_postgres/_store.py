"""The store ``postgres``."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import psycopg
from agl_reading import ServiceLog, ServiceState

from agl_core.clocks import monotonic
from agl_core.errors import StoreError
from agl_core.store import (
    BatchingStore,
    Changes,
    ClaimRequest,
    Clock,
    Operations,
    Pruned,
    Records,
    without_password,
)
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    Ingest,
    Rollout,
    Span,
)
from agl_postgres._connect import Pool, Server, connection_errors
from agl_postgres._errors import is_starting
from agl_postgres._listener import Listener
from agl_postgres._options import PostgresOptions
from agl_postgres._prune import prune_spans
from agl_postgres._reads import Readings
from agl_postgres._routing import Deliver, Writers
from agl_postgres._schema import check_tables
from agl_postgres._writer import CommitThread, Touched

T = TypeVar("T")

_PAUSE_S: Final = 0.2
_EVERY: Final = 1_000_000
"""More than any number of waiting workers."""
_TOUCHED: ContextVar[Touched | None] = ContextVar("agl_postgres_touched", default=None)
"""What the operations that this call submits touch."""


def make_store(options: PostgresOptions, directory: Path) -> PostgresStore:
    """Make the store ``postgres``."""
    store = PostgresStore(options)
    store.states = ServiceLog(directory, "postgres")
    return store


class PostgresStore(BatchingStore):
    """A store in a PostgreSQL database, which any number of processes and machines may open.

    One thread writes spans and one the rest; each commits together what arrives at the same time.
    Reads run in parallel; those of a few rollouts that arrive at the same time share a statement.
    Workers and callers of `wait` in every process are woken by notifications of the database.

    Acknowledged writes survive a crash of the process and of the server. Spans alone are
    acknowledged before the server's disk has them; the end of their attempt makes them durable, so
    a crash of the server may lose spans of attempts that are still running, and no others.
    """

    sweep_interval_s = 10.0

    def __init__(self, options: PostgresOptions, *, clock: Clock | None = None) -> None:
        """Configure the store; `open` connects, and creates the tables in an empty database.

        Args:
            options: The store's options.
            clock: Clock for leases and deadlines; None means the system clock.
        """
        super().__init__(retention=options.retention, clock=clock)
        self._options = options
        self.states: ServiceLog | None = None
        """Where the dashboard reads the counts of the pool; nowhere when None."""
        self._waited: Counter[str] = Counter()
        """Ids that callers of `wait` wait for."""

    def reader(self) -> PostgresReader:
        """Return a read-only store on the same database; see `agl_core.store.Readable`."""
        return PostgresReader(self._options)

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Permanently delete spans of final rollouts; see `agl_core.store.Prunable`."""
        server = Server.of(self._options)
        return await asyncio.to_thread(prune_spans, server, list(rollout_ids), dry_run=dry_run)

    def statistics(self) -> dict[str, int]:
        """Return psycopg's counts of the pool, and how often the notifications were lost."""
        return {**self._pool.statistics(), "reconnects": self._listener.reconnects}

    async def connect(self) -> bool:
        await self._connect(create=True)
        alone = False
        self._writers = Writers(self._make_writer, separate=self._options.pool_is_large)
        try:
            alone = await self._listener.start(owner=True)
            self._writers.start()
        except BaseException:
            await self._let_go()
            raise
        try:
            if alone:
                await self._writers.submit(Operations.requeue_running, None)
                await self._listener.share()
            self._listener.listen()
        except BaseException:
            await self.disconnect()
            raise
        return False  # orphans were queued again while other processes waited

    def _make_writer(self, delivered: Deliver) -> CommitThread:
        return CommitThread(
            self._pool,
            now=self.clock.now,
            announce=self.announce,
            notify=self._listener.notify,
            delivered=delivered,
            retry_s=self._options.retry_s,
        )

    async def _connect(self, *, create: bool) -> None:
        """Check the tables and open the pool."""
        server = Server.of(self._options)
        await asyncio.to_thread(_check, server, self._options.retry_s, create=create)
        self._pool = Pool(server, self._options)
        self._readings = Readings(self._pool, self._options)
        self._listener = Listener(
            Server.of(self._options, listening=True),
            announce=self.announce,
            read_again=self._read_again,
        )
        self._pool.open()

    async def disconnect(self) -> None:
        await self._writers.stop()
        await self._let_go()

    async def _let_go(self) -> None:
        await self._listener.stop()
        self._readings.stop()
        await asyncio.to_thread(self._pool.close)

    def submit(
        self, operation: Callable[[Operations], T], *, rows: float = math.inf
    ) -> asyncio.Future[T]:
        del rows
        return self._writers.submit(operation, _TOUCHED.get())

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        return await self._readings.run(query, rows=rows)

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        with _touching(Touched(added=frozenset(one.id for one in rollouts))):
            return await super().enqueue(rollouts)

    async def claim_for(
        self, claiming: ClaimRequest, *, timeout_s: float | None = None
    ) -> list[Claim]:
        with _touching(Touched(queued=max(0, claiming.limit))):
            return await super().claim_for(claiming, timeout_s=timeout_s)

    async def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        if self.states is not None:
            self.states.write(self._state)
        with _touching(Touched(attempts=frozenset(attempt_ids))):
            return await super().heartbeat(attempt_ids)

    def _state(self) -> ServiceState:
        return ServiceState(title="Pool of PostgreSQL", facts=dict(self.statistics()))

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        with _touching(Touched(attempts=frozenset([attempt_id]))):
            return await super().finish(
                attempt_id, status=status, spans=spans, failure=failure, output=output
            )

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        touched = Touched(
            rollouts=frozenset(span.rollout_id for span in spans),
            attempts=frozenset(span.attempt_id for span in spans),
            only_spans=True,
        )
        with _touching(touched):
            return await super().add_spans(spans)

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        ids = list(rollout_ids)
        self._waited.update(ids)
        try:
            return await super().wait(ids, timeout_s=timeout_s)
        finally:
            self._waited.subtract(ids)
            for one in ids:
                if self._waited[one] <= 0:
                    del self._waited[one]

    async def sweep(self) -> float:
        """End overdue attempts, and let waiting workers claim again.

        A process that dies while it claims rollouts leaves them queued without a notification.
        """
        due_at = await super().sweep()
        self.announce(Changes(queued=_EVERY))
        return due_at

    async def _read_again(self) -> None:
        """Wake all callers, because notifications may have been lost."""
        ids = list(self._waited)
        found = await self._readings.run(lambda records: records.rollouts(ids))
        final = [one.id for one in found.values() if one.status.final]
        self.announce(Changes(queued=_EVERY, final=final))


class PostgresReader(PostgresStore):
    """A store that reads a database without changing it; methods that write raise StoreError.

    It is not among the processes that have the store open, and does not end overdue attempts.
    """

    async def connect(self) -> bool:
        await self._connect(create=False)
        try:
            await self._listener.start(owner=False)
            self._listener.listen()
        except BaseException:
            await self._let_go()
            raise
        return False

    async def disconnect(self) -> None:
        await self._let_go()

    def submit(self, operation: Callable[[Operations], T], *, rows: float = math.inf) -> NoReturn:
        del operation, rows
        raise StoreError(
            f"The store at {without_password(self._options.url)} was opened for reading: open it "
            f"with open() to change it"
        )

    async def sweep(self) -> float:
        """Return infinity, because processes that can write end overdue attempts."""
        return math.inf

    async def restart_timers(self) -> None:
        """Do nothing: processes that can write restart leases and deadlines."""


@contextmanager
def _touching(touched: Touched) -> Generator[None, None, None]:
    """Say what the operations that are submitted inside touch."""
    token = _TOUCHED.set(touched)
    try:
        yield
    finally:
        _TOUCHED.reset(token)


def _check(server: Server, retry_s: float, *, create: bool) -> None:
    """Check the tables, and wait for a server that is just starting.

    Raises:
        StoreError: the store cannot be used.
    """
    end = monotonic() + retry_s
    with connection_errors(server.shown):
        while True:
            try:
                return check_tables(server, create=create)
            except psycopg.Error as error:
                if not is_starting(error) or monotonic() + _PAUSE_S > end:
                    raise
            time.sleep(_PAUSE_S)
