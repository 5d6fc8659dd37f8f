"""Calling a run's trackers, each in its own thread, so that their errors do not affect the run."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from agl_core import waits
from agl_core.config import RunConfig, check_options
from agl_core.errors import AglError, ConfigError
from agl_core.interfaces import TrackedRun, Tracker
from agl_core.plugins import PluginManager
from agl_core.types import Evaluation, Losses, Report, StepReport

_log = logging.getLogger(__name__)

_START_S: Final = 120.0
"""Longest time for a tracker's start."""

_Call = Callable[[], None]


class TrackerThread:
    """One tracker, and the thread for all calls of its methods."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self.tracker = tracker
        self.pending: set[asyncio.Future[None]] = set()
        self.failed = False
        self._calls: SimpleQueue[tuple[_Call, Future[None]] | None] = SimpleQueue()

    def open(self) -> None:
        """Start the thread, as a daemon: a tracker that hangs does not keep the process alive."""
        threading.Thread(target=self._serve, name=f"agl-tracker-{self.name}", daemon=True).start()

    def submit(self, call: _Call) -> asyncio.Future[None]:
        """Run `call` after all earlier ones."""
        made: Future[None] = Future()
        self._calls.put((call, made))
        return asyncio.wrap_future(made)

    def close(self) -> None:
        """End the thread after its pending calls."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (item := self._calls.get()) is not None:
            call, made = item
            if not made.set_running_or_notify_cancel():
                continue
            try:
                call()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - telemetry: the caller gets it
                made.set_exception(error)
            else:
                made.set_result(None)


class TrackerThreads:
    """The trackers of a run; implements `agl_core.interfaces.RunObserver`.

    Failures are counted in `losses`; the first failure of each tracker is logged with its cause.
    """

    def __init__(
        self, threads: Sequence[TrackerThread], describe: Callable[[], TrackedRun]
    ) -> None:
        """Set the trackers.

        Args:
            threads: One per tracker.
            describe: Returns the description of the run; called when the run has its store's lease.
        """
        self.losses = Losses()
        self._threads = tuple(threads)
        self._describe = describe
        self._ended = False

    def started(self, config: Any) -> None:
        """Do nothing: `following` has already started the trackers."""

    def step(self, report: StepReport) -> None:
        for thread in self._threads:
            self._submit(thread, partial(thread.tracker.step, report))

    def evaluation(self, evaluation: Evaluation) -> None:
        for thread in self._threads:
            self._submit(thread, partial(thread.tracker.evaluation, evaluation))

    def finished(self, report: Report) -> None:
        """Do nothing: `finish` has called the trackers and waited for them."""

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Start the trackers; pass an error that ends the block to them.

        Raises:
            ConfigError: a tracker cannot be started.
        """
        run = self._describe()
        started: list[TrackerThread] = []
        try:
            for thread in self._threads:
                await _start(thread, run)
                started.append(thread)
            yield
        except BaseException as error:
            await self._finish(started, error)
            raise
        finally:
            for thread in self._threads:
                thread.close()

    async def finish(self, report: Report) -> None:
        """Pass the report of a successful run to the trackers, and wait for them."""
        await self._finish(self._threads, report)

    async def _finish(
        self, threads: Sequence[TrackerThread], outcome: Report | BaseException
    ) -> None:
        if self._ended:
            return
        self._ended = True
        for thread in threads:
            self._submit(thread, partial(thread.tracker.finish, outcome))
        waited = {made for thread in threads for made in thread.pending}
        if not waited:
            return
        _, late = await asyncio.wait(waited, timeout=waits.TRACKERS_S)
        for made in late:
            made.cancel()
        if late:
            await asyncio.wait(late)

    def _submit(self, thread: TrackerThread, call: _Call) -> None:
        made = thread.submit(call)
        thread.pending.add(made)
        made.add_done_callback(partial(self._settled, thread))

    def _settled(self, thread: TrackerThread, made: asyncio.Future[None]) -> None:
        thread.pending.discard(made)
        error = None if made.cancelled() else made.exception()
        if error is None and not made.cancelled():
            return
        self.losses.add(f"tracker_{thread.name}_failed")
        if not thread.failed:
            thread.failed = True
            cause = (
                _text(error) if error else f"it took more than {waits.TRACKERS_S:g} s at the end"
            )
            _log.warning(
                "Tracker %r failed: %s. The run continues; what the tracker lacks is counted as "
                "tracker_%s_failed, and the run's report has all of it",
                thread.name,
                cause,
                thread.name,
            )


def make_observer(
    config: RunConfig, plugins: PluginManager, describe: Callable[[], TrackedRun]
) -> TrackerThreads:
    """Make the trackers that the configuration names, without starting them.

    Raises:
        ConfigError: a name or an option is wrong.
        MissingExtraError: a tracker's package is not installed.
    """
    registry = plugins.registry("trackers")
    threads: list[TrackerThread] = []
    for index, section in enumerate(config.trackers):
        model = registry.options_model(section.name)
        options = check_options(section, model, where=f"trackers.{index}")
        threads.append(TrackerThread(section.name, registry.create(section.name, options)))
    return TrackerThreads(threads, describe)


async def _start(thread: TrackerThread, run: TrackedRun) -> None:
    thread.open()
    starting = thread.submit(partial(thread.tracker.start, run))
    done, _ = await asyncio.wait({starting}, timeout=_START_S)
    fix = "correct its table in [[trackers]], or remove it"
    if not done:
        starting.cancel()
        raise ConfigError(f"Tracker {thread.name!r} did not start within {_START_S:g} s: {fix}")
    error = starting.exception()
    if error is not None and isinstance(error, AglError):
        raise error
    if error is not None:
        raise ConfigError(
            f"Tracker {thread.name!r} cannot be started: {_text(error)}: {fix}"
        ) from error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
