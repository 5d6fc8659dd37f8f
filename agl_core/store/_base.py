"""The public base classes of stores: abstract methods and the behaviour common to all stores."""

from __future__ import annotations

import asyncio
import functools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

from agl_core.errors import LeadHeldError, StoreError
from agl_core.store import _operations
from agl_core.store._codec import json_value
from agl_core.store._operations import Changes, ClaimRequest, FinishRequest, Operations
from agl_core.store._records import Records
from agl_core.store._waiting import ClaimQueue, Clock, FinalWatches, SystemClock, Watchdog
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    Ingest,
    Resources,
    Rollout,
    RolloutQuery,
    Span,
)

T = TypeVar("T")
Retention = Literal["keep", "drop_spans"]
"""What becomes of the spans of a rollout that is consumed."""

_SPANS_EXPECTED: Final = 16
"""Assumed number of spans per rollout, to estimate the rows of a read."""
_CLOSED: Final = "The store was closed while a caller waited on it"


class BaseStore(ABC):
    """A `StoreLifecycle` on a custom storage medium: a file, a database or a service.

    A subclass implements `connect`, `disconnect`, `write` and `read`, and provides the rows of its
    medium as `Records`. This class implements state changes, fences, leases, deadlines, waiting,
    the lead and retention. `agl_testing.store_contract` tests a subclass.

    All methods are called on the event loop that opened the store. A write through this object
    wakes callers that wait on the same object immediately. Attributes of this class that begin with
    an underscore have mangled names, so those of a subclass never replace them.
    """

    poll_interval_s: float = math.inf
    """Seconds after which waiting callers check for writes of other processes, which cannot wake
    them. Finite if several processes can open the store."""
    sweep_interval_s: float = math.inf
    """Seconds after which the watchdog checks for attempts that other processes started. Finite if
    several processes can open the store."""

    def __init__(self, *, retention: Retention = "keep", clock: Clock | None = None) -> None:
        """Configure the store without opening it.

        Args:
            retention: ``drop_spans`` deletes the spans of consumed rollouts.
            clock: Clock for leases and deadlines; None means the system clock.
        """
        self.__retention = retention
        self.clock: Clock = clock or SystemClock()
        """Clock of the transactions; see `Operations`."""
        self.__claimers = ClaimQueue()
        self.__finals = FinalWatches()
        self.__watchdog = self.__fresh_watchdog()
        self.__tasks: set[asyncio.Future[Any]] = set()
        self.__writes: set[asyncio.Future[Any]] = set()
        self.__reads: set[asyncio.Future[None]] = set()
        """A future per read in progress, done when the read ends."""
        self.__open = False
        self.__process = 0

    @abstractmethod
    async def connect(self) -> bool:
        """Open the medium and create missing tables or files.

        Returns:
            True if no other process has the store open. Attempts with status RUNNING are then left
            over from a crash, and their rollouts are queued again immediately. If False, such
            attempts end when their leases expire.

        Raises:
            StoreError: the medium cannot be used.
        """

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the medium.

        When it is called, every `read` and `write` has returned, and none follows before the next
        `connect`.
        """

    @abstractmethod
    async def write(self, work: Callable[[Records], T]) -> T:
        """Run `work` once in a transaction and return its result.

        - Atomic: either all of its writes take effect or none, even if the process dies.
        - Isolated: transactions of all processes are serializable.
        - Ordered: transactions of this object take effect in the order of the calls.
        - Durable: once this method returns, the writes survive the process if the store is
          persistent.
        - If `work` raises, its writes are rolled back and the exception is raised unchanged. `work`
          raises an `AglError` only before its first write.

        The caller does not cancel this method while it runs. `work` blocks while the medium does,
        and may run in any single thread. After a conflict with another process, `work` may be
        called again from the start.

        Raises:
            StoreError: the medium failed; nothing was written.
        """

    @abstractmethod
    async def read(self, query: Callable[[Records], T], *, rows: float = math.inf) -> T:
        """Run the read-only `query` on a consistent snapshot and return its result.

        The snapshot includes at least every write that had returned before this call.

        Args:
            query: Called under the same conditions as `work` of `write`.
            rows: Estimated number of rows read; infinity if unknown.

        Raises:
            StoreError: the medium failed.
        """

    def submit(
        self, operation: Callable[[Operations], T], *, rows: float = math.inf
    ) -> asyncio.Future[T]:
        """Start one write operation; see `BatchingStore.submit`."""
        del rows
        task = asyncio.ensure_future(self.__run(operation))
        self.__writes.add(task)
        task.add_done_callback(self.__writes.discard)
        return asyncio.shield(task)

    async def __run(self, operation: Callable[[Operations], T]) -> T:
        done: list[Changes] = []

        def work(records: Records) -> T:
            operations = Operations(records, self.clock.now())
            value = operation(operations)
            done[:] = [operations.changes]
            return value

        value = await self.write(work)
        self.announce(done[0])
        return value

    def announce(self, changes: Changes) -> None:
        """Wake the callers and the watchdog that wait for the changes of a durable write."""
        if changes.final:
            self.__finals.announce(changes.final)
        if changes.queued:
            self.__claimers.arrive(changes.queued)
        if changes.due_at < math.inf:
            self.__watchdog.notice(changes.due_at)

    async def open(self) -> None:
        """Connect, queue the rollouts of orphaned attempts again, and start the watchdog.

        Raises:
            StoreError: the store is already open, or the medium cannot be used.
        """
        if self.__open:
            raise StoreError("The store is open already: open() it once, close() it after use")
        self.__watchdog = self.__fresh_watchdog()
        crashed = await self.connect()
        try:
            if crashed:
                await self.submit(Operations.requeue_running)
        except BaseException:
            await self.__disconnect()
            raise
        self.__open = True
        self.__process = os.getpid()
        self.__keep(asyncio.ensure_future(self.__watchdog.run()))

    async def close(self) -> None:
        """Close after pending reads and writes; waiting callers get a StoreError. Idempotent."""
        if not self.__open:
            return
        self.__open = False
        error = StoreError(_CLOSED)
        self.__claimers.close(error)
        self.__finals.close(error)
        for task in list(self.__tasks):
            task.cancel()
        await self.__disconnect()

    async def __disconnect(self) -> None:
        """Disconnect once all reads and writes, also those of cancelled callers, have returned."""
        if pending := self.__tasks | self.__writes | self.__reads:
            await asyncio.wait(pending)
        await self.disconnect()

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        rollouts = list(rollouts)
        return await self.__write(lambda store: store.enqueue(rollouts), rows=len(rollouts))

    async def claim(
        self, worker: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Claim]:
        return await self.claim_for(ClaimRequest(worker, limit), timeout_s=timeout_s)

    async def claim_for(
        self, claiming: ClaimRequest, *, timeout_s: float | None = None
    ) -> list[Claim]:
        """Claim as `claim` does, for a request with an id, which can be repeated or undone."""
        time_left = _countdown(timeout_s)
        while True:
            seen = self.__claimers.arrivals
            claims = await self.__claim(claiming)
            claiming = replace(claiming, repeated=False)
            left = time_left()
            if claims or left <= 0:
                return claims
            if not self.__open:
                raise StoreError(_CLOSED)
            await self.__claimers.wait(seen, timeout_s=_finite(min(left, self.poll_interval_s)))

    async def __claim(self, claiming: ClaimRequest) -> list[Claim]:
        self.__check_open()
        future = self.submit(lambda store: store.claim(claiming), rows=claiming.limit)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(self.__hand_back)
            raise

    def __hand_back(self, future: asyncio.Future[list[Claim]]) -> None:
        """Queue rollouts again whose worker was cancelled while it claimed them."""
        claims = [] if future.cancelled() or future.exception() else future.result()
        if claims and self.__open:
            self.__keep(self.submit(lambda store: store.hand_back(claims), rows=len(claims)))

    async def hand_back(self, claim_ids: Collection[str]) -> None:
        """Queue rollouts again whose claims were not received because the callers disconnected."""
        claim_ids = frozenset(claim_ids)
        await self.__write(lambda store: store.hand_back_of(claim_ids))

    async def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        attempt_ids = list(attempt_ids)
        return await self.__write(lambda store: store.heartbeat(attempt_ids), rows=len(attempt_ids))

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        # Converted before the write is queued, because the caller may change the output afterwards.
        kept = json_value(output)
        ending = FinishRequest(status=status, spans=list(spans), failure=failure, output=kept)
        return await self.__write(
            lambda store: store.finish(attempt_id, ending), rows=1 + len(ending.spans)
        )

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        rollout_ids = list(rollout_ids)
        return await self.__write(
            lambda store: store.cancel(rollout_ids, reason), rows=len(rollout_ids)
        )

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        """Record spans of running attempts in one write; count late and repeated spans.

        Raises:
            StoreError: an attempt does not exist in this store; the other spans are recorded.
        """
        spans = list(spans)
        ingest, strangers = await self.__write(
            lambda store: store.add_spans(spans), rows=len(spans)
        )
        if strangers:
            raise StoreError(
                f"Spans of attempts {strangers} were refused, the other {ingest.accepted} recorded: "
                f"this store has no such attempts of the rollouts that the spans name"
            )
        return ingest

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        rollout_ids = list(rollout_ids)
        return await self.__read(
            lambda records: _operations.spans_of(records, rollout_ids, attempt_id),
            rows=_SPANS_EXPECTED * len(rollout_ids),
        )

    async def encoded_spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[bytes]:
        """Return the spans of `spans` in their stored form, for a server that only sends them.

        ``SPANS.decode`` decodes them, and raises the StoreError of a span that cannot be read.
        """
        rollout_ids = list(rollout_ids)
        return await self.__read(
            lambda records: _operations.encoded_spans_of(records, rollout_ids, attempt_id),
            rows=_SPANS_EXPECTED * len(rollout_ids),
        )

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        return await self.__read(
            lambda records: records.select(query), rows=len(query.ids) or query.limit
        )

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        self.__check_open()
        time_left = _countdown(timeout_s)
        watch = self.__finals.watch(rollout_ids)
        final: dict[str, Rollout] = {}
        try:
            while True:
                # A final status never changes, so only the other rollouts are read again.
                known = await self.__existing([one for one in rollout_ids if one not in final])
                final.update({one: known[one] for one in known if known[one].status.final})
                left = time_left()
                if all(one in final for one in rollout_ids) or left <= 0:
                    return [final[one] for one in rollout_ids if one in final]
                # The watch was created before the read, so it notices rollouts that end after it.
                watch.see(final)
                await watch.wait(timeout_s=_finite(min(left, self.poll_interval_s)))
        finally:
            self.__finals.unwatch(watch)

    async def __existing(self, rollout_ids: Sequence[str]) -> dict[str, Rollout]:
        return await self.__read(
            lambda records: _operations.existing(records, rollout_ids), rows=len(rollout_ids)
        )

    async def consume(self, rollout_ids: Sequence[str]) -> int:
        rollout_ids = list(rollout_ids)
        drop = self.__retention == "drop_spans"
        rows = math.inf if drop else len(rollout_ids)
        return await self.__write(
            lambda store: store.consume(rollout_ids, drop_spans=drop), rows=rows
        )

    async def publish(self, resources: Resources) -> Resources:
        return await self.__write(lambda store: store.publish(resources), rows=1)

    async def resources(self, version: int | None = None) -> Resources | None:
        query = functools.partial(_operations.resources_of, version=version)
        return await self.__read(query, rows=1)

    async def lead(self, instance: str, *, lease_s: float) -> None:
        if not instance or not (math.isfinite(lease_s) and lease_s >= 0):
            raise StoreError(
                f"Instance {instance!r} asked to lead for lease_s={lease_s!r}: give a name, and a "
                f"finite time of 0 or more"
            )
        held = await self.__write(lambda store: store.lead(instance, lease_s), rows=1)
        if lease_s > 0 and held is not None and held.instance != instance:
            raise LeadHeldError(held.instance, held.until)

    async def __write(self, operation: Callable[[Operations], T], *, rows: float = math.inf) -> T:
        """Run a transaction, which continues if the caller is cancelled."""
        self.__check_open()
        return await self.submit(operation, rows=rows)

    async def __read(self, query: Callable[[Records], T], *, rows: float) -> T:
        """Run a query; `close` waits for it."""
        self.__check_open()
        ended = asyncio.get_running_loop().create_future()
        self.__reads.add(ended)
        try:
            return await self.read(query, rows=rows)
        finally:
            self.__reads.discard(ended)
            ended.set_result(None)

    def __fresh_watchdog(self) -> Watchdog:
        return Watchdog(
            self.clock,
            self.sweep,
            restart_timers=self.restart_timers,
            longest_s=self.sweep_interval_s,
        )

    async def restart_timers(self) -> None:
        """Restart leases and deadlines after the clock jumped; a store for reading does nothing."""
        await self.__write(Operations.restart_timers)

    async def sweep(self) -> float:
        """End overdue attempts, and return when the next one is due.

        A store for reading returns infinity.
        """
        return await self.__write(Operations.expire)

    def __keep(self, task: asyncio.Future[Any]) -> None:
        """Reference a background task until it is done; the loop has only a weak reference."""
        self.__tasks.add(task)
        task.add_done_callback(self.__tasks.discard)

    def __check_open(self) -> None:
        if not self.__open:
            raise StoreError(
                "The store is not open, or closed: call open() first, and nothing after close()"
            )
        if os.getpid() != self.__process:
            raise StoreError(
                f"The store was opened by process {self.__process}, and this process is a fork of "
                f"it: open another store object in this process"
            )


class BatchingStore(BaseStore):
    """A `BaseStore` whose subclass implements `submit` instead of `write`.

    Use it for a store that commits several operations in one transaction, or that needs no
    coroutine for a write. `disconnect` completes the submitted operations, because a caller that
    was cancelled no longer waits for its operation.
    """

    @abstractmethod
    def submit(
        self, operation: Callable[[Operations], T], *, rows: float = math.inf
    ) -> asyncio.Future[T]:
        """Start a transaction with the guarantees of `write`.

        Args:
            operation: Called with `Operations` on the transaction's records.
            rows: Estimated number of rows written; infinity if unknown.

        Returns:
            A future with the result, set once the writes are durable and `announce` was called with
            the changes. Cancelling the future does not cancel the operation.
        """

    async def write(self, work: Callable[[Records], T]) -> T:
        return await self.submit(lambda operations: work(operations.records))


def _countdown(timeout_s: float | None) -> Callable[[], float]:
    """Return a function that returns the seconds left of a timeout that starts now."""
    if timeout_s is None:
        return lambda: math.inf
    loop = asyncio.get_running_loop()
    end = loop.time() + timeout_s
    return lambda: end - loop.time()


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else seconds
