"""A synchronous function in a thread that calls coroutines of the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agl_core.threads import in_thread

Result = TypeVar("Result")


class EndedError(BaseException):
    """Ends the thread. Not an `Exception`: gepa catches those and continues."""


class Bridge:
    """Lets a thread run coroutines on the event loop, one at a time, until it is closed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create an open bridge.

        Args:
            loop: The event loop on which coroutines run.
        """
        self._loop = loop
        self._lock = threading.Lock()
        self._pending: concurrent.futures.Future[Any] | None = None
        self.closed = False
        self.error: Exception | None = None
        """The error of the coroutine that ended the thread."""

    def call(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the event loop and return its result; for the thread alone.

        Raises:
            EndedError: the coroutine raised, which `error` has, or the bridge is closed.
        """
        pending = self._submit(coroutine)
        try:
            return pending.result()
        except concurrent.futures.CancelledError:
            raise EndedError from None
        except Exception as error:
            self.error = error
            raise EndedError from error

    def close(self) -> None:
        """Cancel the coroutine that runs, and refuse others; for the event loop."""
        with self._lock:
            self.closed = True
            if self._pending is not None:
                self._pending.cancel()

    def _submit(self, coroutine: Coroutine[Any, Any, Result]) -> concurrent.futures.Future[Result]:
        with self._lock:
            if self.closed or self._loop.is_closed():
                coroutine.close()
                raise EndedError
            pending = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            self._pending = pending
        return pending


async def run_alongside(work: Callable[[Bridge], Result], *, name: str) -> Result:
    """Run a function in a thread of its own and return its result.

    If the caller is cancelled, the coroutine that the thread waits for is cancelled, and the thread
    has ended when the cancellation continues.

    Args:
        work: The function; it calls coroutines by the bridge that it gets.
        name: Name of the thread.

    Raises:
        Exception: what a coroutine raised through the bridge, or what the function raised.
    """
    bridge = Bridge(asyncio.get_running_loop())
    running = asyncio.ensure_future(in_thread(work, bridge, name=name))
    try:
        await asyncio.wait({running})  # a cancellation does not cancel `running`
    except asyncio.CancelledError:
        bridge.close()
        await asyncio.wait({running})
        raise
    outcome = running.result()
    if bridge.error is not None:
        raise bridge.error
    if isinstance(outcome.error, EndedError):  # only its coroutine was cancelled
        raise asyncio.CancelledError
    if outcome.error is not None:
        raise outcome.error
    return outcome.value
