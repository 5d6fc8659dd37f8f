"""A store in another process, used over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from agl_core import waits
from agl_core.errors import StoreError
from agl_core.serving import Patience, Peer, shared_key
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
from agl_core.types.ids import new_id
from agl_remote import store_calls as calls

if TYPE_CHECKING:
    from agl_remote.options import HttpStoreOptions

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")

_log = logging.getLogger(__name__)


def make_store(options: HttpStoreOptions, directory: Path) -> HttpStore:
    """The store ``http``.

    Raises:
        ConfigError: there is no shared key.
    """
    del directory
    return HttpStore(options.url, shared_key())


class HttpStore:
    """A `StoreLifecycle` that `agl store serve` keeps.

    It outlives restarts of the server: a request without an answer is sent again, and every method
    may be repeated. A repetition returns the stored result; its spans are counted as duplicates,
    and `consume` counts only what the repetition did.
    """

    def __init__(self, url: str, key: str, *, patience: Patience | None = None) -> None:
        """Describe the server; `open` reaches for it.

        Args:
            url: ``http://host:port``.
            key: The secret that all processes of the run share.
            patience: How long the server may be away.
        """
        self.url = url
        self._key = key
        self._patience = patience
        self._open = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._writes: set[asyncio.Task[Any]] = set()
        self._claims: set[str] = set()

    async def open(self) -> None:
        """Wait for the server, and find out whether it takes us.

        Raises:
            ConfigError: wrong key, or the server is of another version or no store.
            StoreError: it is open already, or the server stays away.
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
        """Wait a moment for writes in progress; callers that wait get a StoreError. Idempotent."""
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
        """As `Store.claim`; times are those of this machine's clock, not of the server's."""
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
        asked = calls.Reading(rollout_ids=list(rollout_ids), attempt_id=attempt_id)
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
        """Delete spans of final rollouts for good; see `agl_core.store.Prunable`.

        Raises:
            ConfigError: the server keeps a store that cannot.
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
        """Ask; a caller who is cancelled takes the question back."""
        task = self._begin(self._ask(call, _packed(asked)), self._calls)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            raise
        return _result(task)

    async def _write(self, call: calls.StoreMethod[Q, A], asked: Q) -> A:
        """Ask; a caller who is cancelled meanwhile does not stop it."""
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
    """Log what became of a write whose caller was cancelled."""
    if task.cancelled():
        _log.warning("The store was closed before a write of a cancelled caller reached it")
    elif task.exception() is not None:
        _log.warning("A write of a cancelled caller failed: %s", task.exception())
