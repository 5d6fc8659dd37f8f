"""Drive a run's trackers: each in a thread of its own, none of them able to harm the run."""

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
from agl_core.config import RunConfig
from agl_core.config.loader import check_options
from agl_core.errors import AglError, ConfigError
from agl_core.interfaces import TrackedRun, Tracker
from agl_core.plugins import PluginManager
from agl_core.types import Evaluation, Losses, Report, StepReport

_log = logging.getLogger(__name__)

_START_S: Final = 120.0
"""Longest that a tracker's start may take."""

_Call = Callable[[], None]


class TrackerThread:
    """One tracker and the thread that all of its methods are called in."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name = name
        self.tracker = tracker
        self.pending: set[asyncio.Future[None]] = set()
        self.failed = False
        self._calls: SimpleQueue[tuple[_Call, Future[None]] | None] = SimpleQueue()

    def open(self) -> None:
        """Start the thread; a tracker that is stuck keeps no process alive."""
        threading.Thread(target=self._serve, name=f"agl-tracker-{self.name}", daemon=True).start()

    def submit(self, call: _Call) -> asyncio.Future[None]:
        """Make `call` after all that were submitted before it."""
        made: Future[None] = Future()
        self._calls.put((call, made))
        return asyncio.wrap_future(made)

    def close(self) -> None:
        """Let the thread end after what it has to do."""
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


class Tracking:
    """The trackers of a run, called like its other observers.

    Failures are counted in `losses`; the first one of a tracker is logged with its cause.
    """

    def __init__(
        self, threads: Sequence[TrackerThread], describe: Callable[[], TrackedRun]
    ) -> None:
        """Set up.

        Args:
            threads: One per tracker.
            describe: The run that is to be tracked; asked when the run leads its store.
        """
        self.losses = Losses()
        self._threads = tuple(threads)
        self._describe = describe
        self._ended = False

    def started(self, config: Any) -> None:
        """Trackers have been started by then: one that cannot start ends the run earlier."""

    def step(self, report: StepReport) -> None:
        for thread in self._threads:
            self._submit(thread, partial(thread.tracker.step, report))

    def evaluation(self, evaluation: Evaluation) -> None:
        for thread in self._threads:
            self._submit(thread, partial(thread.tracker.evaluation, evaluation))

    def finished(self, report: Report) -> None:
        """Does nothing: `finish` has called the trackers and waited for them."""

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Start the trackers; an error that ends the block is passed to them.

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
        """Call the trackers with the report of a run that ended well, and wait for them."""
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


def make_tracking(
    config: RunConfig, plugins: PluginManager, describe: Callable[[], TrackedRun]
) -> Tracking:
    """The trackers that the configuration names, with their options; none is started yet.

    Raises:
        ConfigError: a name or an option is wrong.
        MissingExtraError: the package of one is not installed.
    """
    registry = plugins.registry("trackers")
    threads: list[TrackerThread] = []
    for index, section in enumerate(config.trackers):
        model = registry.options_model(section.name)
        options = check_options(section, model, where=f"trackers.{index}")
        threads.append(TrackerThread(section.name, registry.create(section.name, options)))
    return Tracking(threads, describe)


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
