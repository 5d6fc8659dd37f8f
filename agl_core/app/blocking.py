"""Running a coroutine from plain code, even if its tasks and threads do not end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from agl_core import waits
from agl_core._interrupts import current_interrupts
from agl_core.clocks import steady_loop, wall
from agl_core.errors import ConfigError

T = TypeVar("T")
NewLoop = Callable[[], asyncio.AbstractEventLoop]

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.2
"""Timeout of each wait, as waiting for a lock would not notice a signal."""


def run_blocking(coroutine: Coroutine[Any, Any, T], *, new_loop: NewLoop = steady_loop) -> T:
    """Run a coroutine from plain code, even if an event loop is already running (a notebook).

    SIGINT, and SIGTERM if no other handler is set, cancel the coroutine; see `Interrupts`.

    Args:
        coroutine: Run on a new event loop.
        new_loop: Makes that loop.

    Raises:
        KeyboardInterrupt: a signal was received.
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
    """One coroutine on its own event loop.

    Unlike `asyncio.run`, it does not wait for tasks that ignore their cancellation or for threads
    of the loop's executor: both can be user code that never ends.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self._coroutine = coroutine
        self._loop = loop
        self._task: asyncio.Task[T] | None = None

    def cancel(self) -> None:
        """Cancel the coroutine; callable from any thread or signal handler."""
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
        """Run in a new thread while this one waits.

        An exception that interrupts the wait does not end the new thread.
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

        run = copy_context().run
        threading.Thread(target=run, args=(target,), name="agl-run", daemon=True).start()
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
        """Wait for tasks to end, for a limited time; return those that did not."""
        if not tasks:
            return set()
        _, late = self._loop.run_until_complete(asyncio.wait(tasks, timeout=waits.TASKS_S))
        return late


Whole = Callable[[Coroutine[Any, Any, T]], Coroutine[Any, Any, T]]


@dataclass(slots=True)
class _Current:
    name: str
    since: float = field(default_factory=wall)
    thread: str = field(default_factory=lambda: threading.current_thread().name)
    active: bool = False
    """Whether its coroutine is running."""

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.name!r}, since {since} in thread {self.thread!r}"


class _Runs:
    """The current run of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: _Current | None = None

    def begin(self, run: _Current) -> None:
        with self._lock:
            if self._current is not None:
                raise ConfigError(
                    f"Run {run.name!r} cannot start: this process already runs {self._current}, "
                    f"and OPENAI_BASE_URL and OPENAI_API_KEY name one gateway only. Start it after "
                    f"that run has ended, or in another process"
                )
            self._current = run

    def activate(self, run: _Current) -> bool:
        """Mark the coroutine as running; return False if its caller has already left."""
        with self._lock:
            run.active = self._current is run
            return run.active

    def end(self, run: _Current, *, coroutine: bool) -> None:
        """Allow the next run, after the coroutine has ended or if it never began."""
        with self._lock:
            if coroutine:
                run.active = False
            if self._current is run and not run.active:
                self._current = None


_RUNS: Final = _Runs()


@contextmanager
def only_run(name: str) -> Generator[Whole[Any], None, None]:
    """Make this the only run of the process; yield a wrapper for the run's coroutine.

    If the caller is interrupted, the run ends only with its coroutine; a coroutine that has not
    begun by then is cancelled.

    Args:
        name: Name of the run.

    Raises:
        ConfigError: another run has not ended.
    """
    run = _Current(name)
    _RUNS.begin(run)

    async def whole(coroutine: Coroutine[Any, Any, T]) -> T:
        if not _RUNS.activate(run):
            coroutine.close()
            raise asyncio.CancelledError
        try:
            return await coroutine
        finally:
            _RUNS.end(run, coroutine=True)

    try:
        yield whole
    finally:
        _RUNS.end(run, coroutine=False)
