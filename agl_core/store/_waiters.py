"""Queues of callers that wait for work or for results; a write wakes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from agl_core.errors import StoreError


class ClaimQueue:
    """A first-in, first-out queue of workers that wait for rollouts."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.arrivals = 0
        """Number of rollouts queued so far. Read it before a claim and pass it to `wait` after."""

    def arrive(self, n: int) -> None:
        """Wake up to `n` workers, because `n` rollouts became claimable."""
        self.arrivals += n
        self._call(n)

    async def wait(self, seen: int, *, timeout_s: float | None) -> None:
        """Wait until `arrivals` differs from `seen`, or until `timeout_s` passed."""
        if self.arrivals != seen:
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.append(called)
        try:
            await asyncio.wait({called}, timeout=timeout_s)
        except asyncio.CancelledError:
            if called.done():
                self._call(1)
            raise
        finally:
            if not called.done():
                self._waiting.remove(called)
        if called.done():
            called.result()

    def close(self, error: StoreError) -> None:
        """Fail every waiter with `error`."""
        while self._waiting:
            called = self._waiting.popleft()
            if not called.done():
                called.set_exception(error)

    def _call(self, n: int) -> None:
        while n > 0 and self._waiting:
            called = self._waiting.popleft()
            if not called.done():
                called.set_result(None)
                n -= 1


class Watch:
    """One caller's wait for a set of rollouts to become final."""

    def __init__(self, rollout_ids: Iterable[str]) -> None:
        self.rollout_ids = frozenset(rollout_ids)
        self._remaining = set(self.rollout_ids)
        self._done = asyncio.get_running_loop().create_future()

    def see(self, rollout_ids: Iterable[str]) -> None:
        """Record that these rollouts are final."""
        self._remaining.difference_update(rollout_ids)
        if not self._remaining and not self._done.done():
            self._done.set_result(None)

    def fail(self, error: StoreError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def wait(self, *, timeout_s: float | None) -> None:
        """Return when all rollouts are final or `timeout_s` passed."""
        if self._remaining:
            await asyncio.wait({self._done}, timeout=timeout_s)
        if self._done.done():
            self._done.result()


class FinalWatches:
    """The watches of a store, by rollout."""

    def __init__(self) -> None:
        self._watches: dict[str, set[Watch]] = {}

    def watch(self, rollout_ids: Iterable[str]) -> Watch:
        """Start a watch; call it before reading the rollouts, so that no final status is missed."""
        watch = Watch(rollout_ids)
        for rollout_id in watch.rollout_ids:
            self._watches.setdefault(rollout_id, set()).add(watch)
        return watch

    def unwatch(self, watch: Watch) -> None:
        for rollout_id in watch.rollout_ids:
            watches = self._watches.get(rollout_id, set())
            watches.discard(watch)
            if not watches:
                self._watches.pop(rollout_id, None)

    def announce(self, rollout_ids: Iterable[str]) -> None:
        """Notify the watches that these rollouts are final."""
        for rollout_id in rollout_ids:
            for watch in self._watches.pop(rollout_id, set()):
                watch.see([rollout_id])

    def close(self, error: StoreError) -> None:
        """Fail every watch with `error`."""
        for watches in self._watches.values():
            for watch in watches:
                watch.fail(error)
        self._watches.clear()
