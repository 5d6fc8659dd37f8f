"""A clock that tests advance."""

from __future__ import annotations

import asyncio

_TURNS = 10
"""Iterations of the event loop that a woken task may need to act."""


class ManualClock:
    """A store's `Clock` that only `advance` moves; it stops at every alarm."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._elapsed = now
        self._set_by = 0.0
        self._alarms: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self._elapsed + self._set_by

    def elapsed(self) -> float:
        return self._elapsed

    async def wait(self, event: asyncio.Event, *, until: float) -> None:
        """Return once `event` is set or `advance` has covered the time from now to `until`."""
        if self.now() >= until:
            return
        alarm = (until - self._set_by, asyncio.Event())
        self._alarms.append(alarm)
        tasks = [asyncio.ensure_future(one.wait()) for one in (event, alarm[1])]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._alarms.remove(alarm)
            for task in tasks:
                task.cancel()

    async def advance(self, seconds: float) -> None:
        """Advance the clock; stop at each alarm until its sleeper has run."""
        end = self._elapsed + seconds
        await self._settle()
        while due := [until for until, _ in self._alarms if until <= end]:
            self._elapsed = max(self._elapsed, min(due))
            for until, rung in self._alarms:
                if until <= self._elapsed:
                    rung.set()
            await self._settle()
        self._elapsed = end
        await self._settle()

    def set_by(self, seconds: float) -> None:
        """Set the wall clock forward or back, as a user does; sleeps keep their length."""
        self._set_by += seconds

    async def _settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
