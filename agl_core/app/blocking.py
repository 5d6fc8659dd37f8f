"""Run a coroutine to its end from plain code, whatever its tasks and threads do."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from agl_core.clocks import steady_loop
from agl_core.interrupts import current_interrupts

T = TypeVar("T")
NewLoop = Callable[[], asyncio.AbstractEventLoop]

_log = logging.getLogger(__name__)

_LEFTOVERS_S: Final = 1.0
"""How long tasks that are left over may take to end."""
_LOOK_S: Final = 0.2
"""Between looks for a signal where waiting for a lock would not notice one."""


def run_blocking(coroutine: Coroutine[Any, Any, T], *, new_loop: NewLoop = steady_loop) -> T:
    """Run to the end from plain code, also where an event loop runs already (a notebook).

    SIGINT, and SIGTERM where nobody else handles it, cancel the coroutine; see `Interrupts`.

    Args:
        coroutine: Run on a loop of its own.
        new_loop: Makes that loop.

    Raises:
        KeyboardInterrupt: a signal came.
    """
    run = _Run(coroutine, new_loop())
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        complete = run.complete
    else:
        complete = run.complete_beside
    interrupts = current_interrupts()
    if interrupts is None:
        return complete()
    with interrupts.installed(), interrupts.ending(run.cancel):
        try:
            outcome = complete()
        except asyncio.CancelledError:
            if not interrupts.count:
                raise
        else:
            if not interrupts.count:
                return outcome
    raise KeyboardInterrupt


class _Run(Generic[T]):
    """One coroutine on a loop of its own.

    Unlike `asyncio.run`, it does not wait for tasks that refuse to be cancelled, nor for threads
    of the loop's executor: either can be user code that never ends.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._task: asyncio.Task[T] | None = None

    def cancel(self) -> None:
        """Ask the coroutine to end; from any thread or signal handler."""
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def complete(self) -> T:
        """Run in this thread."""
        loop = self._loop
        executor = ThreadPoolExecutor(thread_name_prefix="asyncio")
        try:
            asyncio.set_event_loop(loop)
            loop.set_default_executor(executor)
            self._task = loop.create_task(self._coroutine)
            return loop.run_until_complete(self._task)
        finally:
            try:
                self._end_leftovers()
            finally:
                executor.shutdown(wait=False, cancel_futures=True)
                asyncio.set_event_loop(None)
                loop.close()

    def complete_beside(self) -> T:
        """Run in a thread of its own while this one waits.

        An exception that interrupts the wait leaves the thread to itself.
        """
        outcome: list[T] = []
        failure: list[BaseException] = []
        ended = threading.Event()

        def target() -> None:
            try:
                outcome.append(self.complete())
            except BaseException as error:  # noqa: BLE001 - handed to the caller below
                failure.append(error)
            finally:
                ended.set()

        threading.Thread(target=target, name="agl-run", daemon=True).start()
        while not ended.wait(_LOOK_S):
            pass
        if failure:
            raise failure[0]
        return outcome[0]

    def _end_leftovers(self) -> None:
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        late = self._wait(*tasks)
        if late:
            _log.warning("%d tasks could not be stopped and are left to themselves", len(late))
        for task in tasks - late:
            if not task.cancelled() and task.exception() is not None:
                context = {"message": "A task failed while it was stopped", "task": task}
                self._loop.call_exception_handler({**context, "exception": task.exception()})
        self._wait(self._loop.create_task(self._loop.shutdown_asyncgens()))

    def _wait(self, *tasks: asyncio.Task[Any]) -> set[asyncio.Task[Any]]:
        """Give tasks some time to end; returns those that did not."""
        if not tasks:
            return set()
        _, late = self._loop.run_until_complete(asyncio.wait(tasks, timeout=_LEFTOVERS_S))
        return late
