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
"""Services give up by themselves before that, or never."""

_Call = Callable[[], None]


class Outlet:
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
        """Have `call` made after all that were submitted before it."""
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
            except (Exception, SystemExit) as error:  # noqa: BLE001 - telemetry: told to who asked
                made.set_exception(error)
            else:
                made.set_result(None)


class Tracking:
    """The trackers of a run, told of it as its other observers are.

    What they fail at is counted in `losses` and told once, with the cause of the first failure.
    """

    def __init__(self, outlets: Sequence[Outlet], describe: Callable[[], TrackedRun]) -> None:
        """Set up.

        Args:
            outlets: One per tracker.
            describe: The run that is to be tracked; asked when the run leads its store.
        """
        self.losses = Losses()
        self._outlets = tuple(outlets)
        self._describe = describe
        self._ended = False

    def started(self, config: Any) -> None:
        """Trackers have been started by then: one that cannot start ends the run earlier."""

    def step(self, report: StepReport) -> None:
        for outlet in self._outlets:
            self._tell(outlet, partial(outlet.tracker.step, report))

    def evaluation(self, evaluation: Evaluation) -> None:
        for outlet in self._outlets:
            self._tell(outlet, partial(outlet.tracker.evaluation, evaluation))

    def finished(self, report: Report) -> None:
        """They have been told by `finish`, which waits for them."""

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Start the trackers; an error that ends the block is told to them.

        Raises:
            ConfigError: a tracker cannot be started.
        """
        run = self._describe()
        started: list[Outlet] = []
        try:
            for outlet in self._outlets:
                await _start(outlet, run)
                started.append(outlet)
            yield
        except BaseException as error:
            await self._finish(started, error)
            raise
        finally:
            for outlet in self._outlets:
                outlet.close()

    async def finish(self, report: Report) -> None:
        """Tell the trackers that the run has ended well, and wait until they took everything."""
        await self._finish(self._outlets, report)

    async def _finish(self, outlets: Sequence[Outlet], outcome: Report | BaseException) -> None:
        if self._ended:
            return
        self._ended = True
        for outlet in outlets:
            self._tell(outlet, partial(outlet.tracker.finish, outcome))
        waited = {told for outlet in outlets for told in outlet.pending}
        if not waited:
            return
        _, late = await asyncio.wait(waited, timeout=waits.TRACKERS_S)
        for told in late:
            told.cancel()
        if late:
            await asyncio.wait(late)

    def _tell(self, outlet: Outlet, call: _Call) -> None:
        told = outlet.submit(call)
        outlet.pending.add(told)
        told.add_done_callback(partial(self._told, outlet))

    def _told(self, outlet: Outlet, told: asyncio.Future[None]) -> None:
        outlet.pending.discard(told)
        error = None if told.cancelled() else told.exception()
        if error is None and not told.cancelled():
            return
        self.losses.add(f"tracker_{outlet.name}_failed")
        if not outlet.failed:
            outlet.failed = True
            cause = (
                _said(error) if error else f"it took more than {waits.TRACKERS_S:g} s at the end"
            )
            _log.warning(
                "Tracker %r failed: %s. The run goes on; what the tracker lacks is counted as "
                "tracker_%s_failed, and the run's report has all of it",
                outlet.name,
                cause,
                outlet.name,
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
    outlets: list[Outlet] = []
    for index, section in enumerate(config.trackers):
        model = registry.options_model(section.name)
        options = check_options(section, model, where=f"trackers.{index}")
        outlets.append(Outlet(section.name, registry.create(section.name, options)))
    return Tracking(outlets, describe)


async def _start(outlet: Outlet, run: TrackedRun) -> None:
    outlet.open()
    starting = outlet.submit(partial(outlet.tracker.start, run))
    done, _ = await asyncio.wait({starting}, timeout=_START_S)
    fix = "mend its table in [[trackers]], or take it out"
    if not done:
        starting.cancel()
        raise ConfigError(f"Tracker {outlet.name!r} did not start within {_START_S:g} s: {fix}")
    error = starting.exception()
    if error is not None and isinstance(error, AglError):
        raise error
    if error is not None:
        raise ConfigError(
            f"Tracker {outlet.name!r} cannot be started: {_said(error)}: {fix}"
        ) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
