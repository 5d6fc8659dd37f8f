"""The watchdog that ends attempts whose lease or deadline passed, and its clock."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
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
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            return


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
