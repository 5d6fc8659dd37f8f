"""Waiting of a store: callers for work or results, the watchdog for the next due lease or deadline."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Protocol

from agl_core.clocks import monotonic, wall
from agl_core.errors import StoreError

LATE_S = 1.0
"""Tolerance in seconds: a watchdog that wakes later was itself delayed, and a clock that moved by
more was set."""
RETRY_S = 1.0

_logger = logging.getLogger(__name__)


class Clock(Protocol):
    """A source of time for a store, which tests replace by a clock that they control."""

    def now(self) -> float:
        """Return Unix seconds."""
        ...

    def elapsed(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    async def wait(self, event: asyncio.Event, *, until: float) -> None:
        """Return once `event` is set or the time is `until`; with infinity, wait for the event."""
        ...


class SystemClock:
    """The system clock."""

    def now(self) -> float:
        return wall()

    def elapsed(self) -> float:
        return monotonic()

    async def wait(self, event: asyncio.Event, *, until: float) -> None:
        timeout_s = None if math.isinf(until) else max(0.0, until - wall())
        # Unlike `wait_for` of Python 3.11, this ends when it is cancelled as the event is set.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()


class Watchdog:
    """A task that sleeps until the next lease or deadline is due, then ends overdue attempts.

    If a blocked event loop or a suspended machine delayed the watchdog, it cannot distinguish a
    dead worker from one that was delayed too. It then waits `LATE_S` for heartbeats first.

    If the clock was set, or the machine was suspended, every lease and deadline is off by the same
    time, so all of them are restarted.
    """

    def __init__(
        self,
        clock: Clock,
        sweep: Callable[[], Awaitable[float]],
        *,
        restart_timers: Callable[[], Awaitable[None]],
        longest_s: float = math.inf,
    ) -> None:
        """Build a watchdog.

        Args:
            clock: The clock.
            sweep: Ends the attempts that are due and returns the next due time.
            restart_timers: Restarts all leases and deadlines from now.
            longest_s: Longest sleep; finite if attempts can start without a call of `notice`.
        """
        self._clock = clock
        self._sweep = sweep
        self._restart_timers = restart_timers
        self._offset = self._clock_offset()
        self._was_set = False
        self._failure = ""
        self._longest_s = longest_s
        self._earlier = asyncio.Event()
        self._target = math.inf
        self._noticed = math.inf

    def notice(self, due_at: float) -> None:
        """Record the due time of a started attempt, which may be the earliest."""
        self._noticed = min(self._noticed, due_at)
        if due_at < self._target:
            self._target = due_at
            self._earlier.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self._noticed = math.inf
            self._target = -math.inf
            due_at = await self._swept()
            self._target = min(due_at, self._noticed, self._clock.now() + self._longest_s)
            await self._sleep()

    async def _swept(self) -> float:
        try:
            if self._was_set:
                await self._restart_timers()
                self._was_set = False
            due_at = await self._sweep()
        except StoreError as error:
            if self._failure != str(error):
                self._failure = str(error)
                _logger.exception("The watchdog cannot end overdue attempts; it tries again")
            return self._clock.now() + RETRY_S
        self._failure = ""
        return due_at

    async def _sleep(self) -> None:
        while self._clock.now() < self._target:
            self._earlier.clear()
            await self._clock.wait(self._earlier, until=self._target)
            if self._look_at_clock():
                return
        if self._clock.now() - self._target > LATE_S:
            await self._clock.wait(asyncio.Event(), until=self._clock.now() + LATE_S)

    def _look_at_clock(self) -> bool:
        """Return whether the clock was set since the last call."""
        before, self._offset = self._offset, self._clock_offset()
        moved_s = self._offset - before
        if abs(moved_s) <= LATE_S:
            return False
        _logger.warning("The clock moved by %+.1f s: leases and deadlines are restarted", moved_s)
        self._was_set = True
        return True

    def _clock_offset(self) -> float:
        return self._clock.now() - self._clock.elapsed()


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
        """Fail every waiter with `error`; a claim that is not waiting yet tries once more."""
        self.arrivals += 1
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
