"""The store ``mongodb``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from agl_stores import key
from msgspec.structs import replace
from pymongo import AsyncMongoClient, MongoClient

from agl_core.errors import StoreError
from agl_core.store import BaseStore, Changes, Clock, Operations, Pruned, Records, without_password
from agl_core.types import Rollout
from agl_mongodb._commit import Committer
from agl_mongodb._connect import (
    OWNERS,
    ROLLOUTS,
    Collections,
    Document,
    MongoServer,
    has_transactions,
    prepare,
)
from agl_mongodb._documents import Documents, pieces
from agl_mongodb._errors import store_errors
from agl_mongodb._options import MongoOptions
from agl_mongodb._owners import Owners
from agl_mongodb._watch import EVERY, StatusWatch

T = TypeVar("T")
_POLL_S: Final = 10.0
"""How often callers look although a change stream wakes them."""
_ROLLOUTS_PER_PRUNING: Final = 100


def make_store(options: MongoOptions, directory: Path) -> MongoStore:
    """Make the store ``mongodb``."""
    del directory
    return MongoStore(options)


class MongoStore(BaseStore):
    """A store in a MongoDB database, which any number of processes and machines may open.

    Each rollout is one document with its attempts. Writes are transactions where the server has
    them; see `Committer` for their order where it has none. A read sees every rollout as a whole,
    but not several rollouts at one moment.

    `Records` are synchronous, so they use the driver's client for threads: one thread writes, and
    reads run in parallel. Waiting uses its client for the event loop.
    """

    sweep_interval_s = 10.0

    def __init__(self, options: MongoOptions, *, clock: Clock | None = None) -> None:
        """Configure the store; `open` connects, and creates the indexes in an empty database.

        Args:
            options: The store's options.
            clock: Clock for leases and deadlines; None means the system clock.
        """
        super().__init__(retention=options.retention, clock=clock)
        self._options = options
        self._server = MongoServer.of(options)
        self.poll_interval_s = options.poll_s

    def reader(self) -> MongoReader:
        """Return a read-only store on the same database; see `agl_core.store.Readable`."""
        return MongoReader(self._options)

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Permanently delete spans of final rollouts; see `agl_core.store.Prunable`."""
        return await asyncio.to_thread(
            _prune, self._server, list(rollout_ids), self.clock.now, dry_run=dry_run
        )

    async def connect(self) -> bool:
        await self._connect(create=True)
        self._owners = Owners(
            self._server.async_database(self._loop_client)[OWNERS],
            dead_after_s=self._options.dead_after_s,
        )
        try:
            with store_errors(self._server.shown):
                alone = await self._owners.enter()
            if alone:
                await self.submit(Operations.requeue_running)
            with store_errors(self._server.shown):
                await self._owners.share()
        except BaseException:
            await self.disconnect()
            raise
        return False  # orphans were queued again while other processes waited

    async def _connect(self, *, create: bool) -> None:
        """Connect, check the collections and begin to watch them."""
        with store_errors(self._server.shown):
            self._client, self._committer = await asyncio.to_thread(
                _checked, self._server, create=create
            )
        self._collections = Collections(self._server.database(self._client))
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="agl-store-writer")
        self._readers = ThreadPoolExecutor(
            self._options.pool_max, thread_name_prefix="agl-store-reader"
        )
        self._loop_client: AsyncMongoClient[Document] = self._server.async_client()
        self._watch = StatusWatch(
            self._server.async_database(self._loop_client)[ROLLOUTS],
            announce=self.announce,
            shown=self._server.shown,
        )
        try:
            with store_errors(self._server.shown):
                streams = await self._watch.start()
        except BaseException:
            await self._let_go()
            raise
        if streams:
            self.poll_interval_s = _POLL_S

    async def disconnect(self) -> None:
        await self._owners.leave()
        await self._let_go()

    async def _let_go(self) -> None:
        await self._watch.stop()
        await self._loop_client.close()
        for threads in (self._writer, self._readers):
            await asyncio.to_thread(threads.shutdown)
        await asyncio.to_thread(self._client.close)

    async def write(self, work: Callable[[Records], T]) -> T:
        loop = asyncio.get_running_loop()
        run = partial(self._committer.run, work, self.clock.now)
        return await loop.run_in_executor(self._writer, run)

    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        del rows
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._look_up, query)

    def _look_up(self, query: Callable[[Records], T]) -> T:
        with store_errors(self._server.shown):
            return query(Documents(self._collections))

    async def sweep(self) -> float:
        """End overdue attempts, and let waiting workers claim again.

        A process that dies while it claims rollouts leaves them queued without a notification.
        """
        due_at = await super().sweep()
        self.announce(Changes(queued=EVERY))
        return due_at


class MongoReader(MongoStore):
    """A store that reads a database without changing it; methods that write raise StoreError.

    It is not among the processes that have the store open, and does not end overdue attempts.
    """

    async def connect(self) -> bool:
        await self._connect(create=False)
        return False

    async def disconnect(self) -> None:
        await self._let_go()

    def submit(self, operation: Callable[[Operations], T], *, rows: float = math.inf) -> NoReturn:
        del operation, rows
        raise StoreError(
            f"The store at {without_password(self._options.url)} was opened for reading: open it "
            f"with open() to change it"
        )

    async def write(self, work: Callable[[Records], T]) -> NoReturn:
        self.submit(lambda operations: work(operations.records))

    async def sweep(self) -> float:
        """Return infinity, because processes that can write end overdue attempts."""
        return math.inf

    async def restart_timers(self) -> None:
        """Do nothing: processes that can write restart leases and deadlines."""


def _checked(server: MongoServer, *, create: bool) -> tuple[MongoClient[Document], Committer]:
    """Connect, and check what the server can do and the form of the collections."""
    client = server.client()
    try:
        transactions = has_transactions(client, server.options)
        collections = Collections(server.database(client))
        prepare(collections, server.shown, create=create)
    except BaseException:
        client.close()
        raise
    return client, Committer(
        client,
        collections,
        server.shown,
        transactions=transactions,
        retry_s=server.options.retry_s,
    )


def _prune(
    server: MongoServer, ids: Sequence[str], now: Callable[[], float], *, dry_run: bool
) -> Pruned:
    """Run `Prunable.prune` through a new client; other processes may use the store."""
    total = Pruned()
    with store_errors(server.shown):
        client, committer = _checked(server, create=False)
        try:
            collections = Collections(server.database(client))
            for piece in pieces(ids, _ROLLOUTS_PER_PRUNING):

                def work(records: Records, piece: Sequence[str] = piece) -> Pruned:
                    found = list(records.rollouts(piece).values())
                    return _prune_piece(records, collections, found, dry_run=dry_run)

                total += committer.run(work, now)
        finally:
            client.close()
    return total


def _prune_piece(
    records: Records, collections: Collections, found: Sequence[Rollout], *, dry_run: bool
) -> Pruned:
    final = [rollout for rollout in found if rollout.status.final]
    pruned = Pruned(kept=len(found) - len(final))
    for rollout in final:
        attempts = [key(attempt.id) for attempt in rollout.attempts]
        spans = collections.spans.find({"attempt": {"$in": attempts}}, {"body": 1})
        sizes = [len(each["body"]) for each in spans]
        pruned += Pruned(rollouts=bool(sizes), spans=len(sizes), size=sum(sizes))
        if not dry_run:
            records.drop_spans([rollout.id])
            records.save_rollout(replace(rollout, consumed=True))
    return pruned
