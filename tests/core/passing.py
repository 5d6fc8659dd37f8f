"""Deadlines that pass, and events that come, when a test says so."""

from __future__ import annotations

import asyncio
import concurrent.futures


def pass_time(seconds: float) -> None:
    """Set the running loop's clock ahead: whoever waits there for as long has waited."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds


class Signal:
    """An `asyncio.Event` that may be set and awaited on several loops, and set in threads."""

    def __init__(self) -> None:
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()

    def set(self) -> None:
        if not self.is_set():
            self._future.set_result(None)

    def is_set(self) -> bool:
        return self._future.done()

    async def wait(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._future))
