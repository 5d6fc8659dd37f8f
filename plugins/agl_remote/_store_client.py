"""The client of a store in another process, over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from agl_core import waits
from agl_core.clocks import new_id
from agl_core.errors import StoreError
from agl_core.serving import shared_key
from agl_core.store import SPANS, Pruned, encode, encode_span, json_value
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
from agl_remote import _store_calls as calls
from agl_remote._peer import Patience, Peer

if TYPE_CHECKING:
    from agl_remote._options import HttpStoreOptions

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

_log = logging.getLogger(__name__)


def make_store(options: HttpStoreOptions, directory: Path) -> HttpStore:
    """Make the store ``http``.

    Raises:
        ConfigError: there is no shared key.
    """
    del directory
    return HttpStore(options.url, shared_key())


class HttpStore:
    """A `StoreLifecycle` whose records are kept by ``agl store serve``.

    It continues after restarts of the server: a request without a response is sent again, and every
    method may be repeated. A repeated call returns the stored result. Its spans are counted as
    duplicates, and `consume` counts only the rollouts that the repeated call consumed.
    """

    def __init__(self, url: str, key: str, *, patience: Patience | None = None) -> None:
        """Configure the store; `open` connects to the server.

        Args:
            url: Address, ``http://host:port``.
            key: The secret that all processes of the run share.
            patience: How long to wait for a server that does not respond.
        """
        self.url = url
        self._key = key
        self._patience = patience
        self._open = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._writes: set[asyncio.Task[Any]] = set()
        self._claims: set[str] = set()

    async def open(self) -> None:
        """Wait for the server and check that it accepts the key and the version.

        Raises:
            ConfigError: the key is wrong, or the server has another version or is not a store.
            StoreError: the store is already open, or the server does not respond in time.
        """
        if self._open:
            raise StoreError("The store is open already: open() it once, close() it after use")
        self._peer = Peer(
            self.url, self._key, what="store", error=StoreError, patience=self._patience
        )
        self._open = True
        try:
            await self._read(calls.HELLO, None)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the store after writes in progress, for which it waits at most `waits.STORE_S`.

        Waiting callers get a StoreError. Idempotent.
        """
        if not self._open:
            return
        self._open = False
        for call in list(self._calls):
            call.cancel()
        if self._claims:
            self._hand_back(self._claims)
        if self._writes:
            _, late = await asyncio.wait(self._writes, timeout=waits.STORE_S)
            for write in late:
                write.cancel()
        await asyncio.gather(*self._calls, *self._writes, return_exceptions=True)
        await self._peer.close()

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        return await self._write(calls.ENQUEUE, list(rollouts))

    async def claim(
        self, worker: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Claim]:
        """Claim as `Store.claim` does, with times converted to the clock of this machine."""
        claim_id = new_id("cl")
        asked = calls.Claiming(worker=worker, limit=limit, timeout_s=timeout_s, claim_id=claim_id)
        self._claims.add(claim_id)
        try:
            claims = await self._read(calls.CLAIM, asked)
            return [_shifted(claim, -self._peer.skew.ahead_s) for claim in claims]
        except asyncio.CancelledError:
            if self._open:
                self._hand_back([claim_id])
            raise
        finally:
            self._claims.discard(claim_id)

    async def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        return await self._write(calls.HEARTBEAT, list(attempt_ids))

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        asked = calls.Finishing(
            attempt_id=attempt_id,
            status=status,
            spans=[encode_span(span) for span in spans],
            failure=failure,
            output=json_value(output),
        )
        return await self._write(calls.FINISH, asked)

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        asked = calls.Cancelling(rollout_ids=list(rollout_ids), reason=reason)
        return await self._write(calls.CANCEL, asked)

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        return await self._write(calls.ADD_SPANS, [encode_span(span) for span in spans])

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        asked = calls.SpanReading(rollout_ids=list(rollout_ids), attempt_id=attempt_id)
        return [SPANS.decode(blob) for blob in await self._read(calls.SPANS, asked)]

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        return await self._read(calls.ROLLOUTS, query)

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        asked = calls.Waiting(rollout_ids=list(rollout_ids), timeout_s=timeout_s)
        return await self._read(calls.WAIT, asked)

    async def consume(self, rollout_ids: Sequence[str]) -> int:
        return await self._write(calls.CONSUME, list(rollout_ids))

    async def publish(self, resources: Resources) -> Resources:
        return await self._write(calls.PUBLISH, resources)

    async def resources(self, version: int | None = None) -> Resources | None:
        found = await self._read(calls.RESOURCES, calls.Version(number=version))
        return found[0] if found else None

    async def lead(self, instance: str, *, lease_s: float) -> None:
        await self._write(calls.LEAD, calls.Leading(instance=instance, lease_s=lease_s))

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Permanently delete spans of final rollouts; see `agl_core.store.Prunable`.

        Raises:
            ConfigError: the server's store is not `Prunable`.
        """
        asked = calls.Pruning(rollout_ids=list(rollout_ids), dry_run=dry_run)
        if self._open:
            return await self._write(calls.PRUNE, asked)
        await self.open()
        try:
            return await self._write(calls.PRUNE, asked)
        finally:
            await self.close()

    async def _read(self, call: calls.StoreMethod[Q, A], asked: Q) -> A:
        """Send a request, which is cancelled with its caller."""
        task = self._begin(self._ask(call, _packed(asked)), self._calls)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        return _result(task)

    async def _write(self, call: calls.StoreMethod[Q, A], asked: Q) -> A:
        """Send a request, which continues if its caller is cancelled."""
        task = self._begin(self._ask(call, _packed(asked)), self._writes)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.add_done_callback(_report)
            raise
        return _result(task)

    def _hand_back(self, claim_ids: Sequence[str] | set[str]) -> None:
        work = self._ask(calls.HAND_BACK, _packed(list(claim_ids)))
        task = asyncio.create_task(work)
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        task.add_done_callback(_report)

    def _begin(
        self, work: Coroutine[Any, Any, T], among: set[asyncio.Task[Any]]
    ) -> asyncio.Task[T]:
        if not self._open:
            work.close()
            raise StoreError("The store is not open: call open() first, and nothing after close()")
        task = asyncio.create_task(work)
        among.add(task)
        task.add_done_callback(among.discard)
        return task

    async def _ask(self, call: calls.StoreMethod[Q, A], body: bytes) -> A:
        return call.answer.decode(await self._peer.call(call.name, body, bytes))


def _shifted(claim: Claim, by_s: float) -> Claim:
    attempts = tuple(attempt.shifted(by_s) for attempt in claim.rollout.attempts)
    return Claim(
        rollout=replace(claim.rollout, attempts=attempts), attempt=claim.attempt.shifted(by_s)
    )


def _packed(value: Any) -> bytes:
    try:
        return encode(value)
    except RecursionError as error:
        raise StoreError(
            f"A {type(value).__name__} cannot be stored: something in it contains itself or is "
            f"nested too deep"
        ) from error


def _result(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise StoreError("The store was closed while a caller waited on it")
    return task.result()


def _report(task: asyncio.Task[Any]) -> None:
    """Log the failure of a write whose caller was cancelled."""
    if task.cancelled():
        _log.warning("The store was closed before a write of a cancelled caller reached it")
    elif task.exception() is not None:
        _log.warning("A write of a cancelled caller failed: %s", task.exception())
