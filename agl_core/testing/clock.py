"""A clock that tests move by hand."""

from __future__ import annotations

import asyncio

_TURNS = 10
"""Passes of the loop that a woken task may need to act."""


class ManualClock:
    """The `Clock` of a store: stands still until it is advanced, then stops at every alarm."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self._now = now
        self._alarms: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    async def wait(self, event: asyncio.Event, *, until: float) -> None:
        """Return once `event` is set or the clock was moved to `until`."""
        if self._now >= until:
            return
        alarm = (until, asyncio.Event())
        self._alarms.append(alarm)
        tasks = [asyncio.ensure_future(one.wait()) for one in (event, alarm[1])]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._alarms.remove(alarm)
            for task in tasks:
                task.cancel()

    async def advance(self, seconds: float) -> None:
        """Move on, stopping at each alarm on the way for as long as its sleeper needs to start."""
        end = self._now + seconds
        await self._settle()
        while due := [until for until, _ in self._alarms if until <= end]:
            self._now = max(self._now, min(due))
            for until, rung in self._alarms:
                if until <= self._now:
                    rung.set()
            await self._settle()
        self._now = end
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
