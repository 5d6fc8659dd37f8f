"""Waiting for work and for results: writes wake the waiters, no timer does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from agl_core.errors import StoreError


class ClaimQueue:
    """Workers without work, first come first served."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.arrivals = 0
        """Rollouts queued so far: read before looking for work, given to `wait` after."""

    def arrive(self, n: int) -> None:
        """Call as many workers as rollouts became claimable."""
        self.arrivals += n
        self._call(n)

    async def wait(self, seen: int, *, timeout_s: float | None) -> None:
        """Wait for an arrival since `seen`, or until `timeout_s` passed."""
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
        """Learn that these are final."""
        self._remaining.difference_update(rollout_ids)
        if not self._remaining and not self._done.done():
            self._done.set_result(None)

    def fail(self, error: StoreError) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    async def wait(self, *, timeout_s: float | None) -> None:
        """Return when all were seen or `timeout_s` passed."""
        if self._remaining:
            await asyncio.wait({self._done}, timeout=timeout_s)
        if self._done.done():
            self._done.result()


class FinalWatches:
    """The watches of a store, by rollout."""

    def __init__(self) -> None:
        self._watches: dict[str, set[Watch]] = {}

    def watch(self, rollout_ids: Iterable[str]) -> Watch:
        """Begin before reading states: what ends in between is then not missed."""
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
        """Notify the watches that these are final."""
        for rollout_id in rollout_ids:
            for watch in self._watches.pop(rollout_id, set()):
                watch.see([rollout_id])

    def close(self, error: StoreError) -> None:
        """Fail every watch with `error`."""
        for watches in self._watches.values():
            for watch in watches:
                watch.fail(error)
        self._watches.clear()
