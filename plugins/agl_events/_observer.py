"""The observer ``events``: makes an event of everything that a run reports to its plugins.

The hooks of attempts are called in the process that runs the agents, all others in the trainer's.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Raw

from agl_core.app import make_filters
from agl_core.clocks import new_id
from agl_core.config import RunConfig, validate
from agl_core.interfaces import AttemptRecord, Filter, Store, TrackedRun
from agl_core.plugins import PluginManager, Source, hookimpl
from agl_core.types import (
    Attempt,
    Batch,
    Evaluation,
    Losses,
    Report,
    Resources,
    Rollout,
    Span,
    StepReport,
    Trajectory,
    Update,
)
from agl_events import _facts as facts
from agl_events._bus import Bus, make_bus
from agl_events._event import BusEvent, new_event
from agl_events._options import EventsOptions
from agl_events._outbox import OUTBOX
from agl_events._sender import EventSender, OutboxLimits

_log = logging.getLogger(__name__)

_INTERRUPTED_S: Final = 1.0
"""Longest wait for the bus in a run that is interrupted, whose process is ended soon."""
_CONNECT_S: Final = 5.0
"""Longest wait for the bus at the start, which finds a wrong password before weights are loaded."""
_VERSION: Final = 1
"""Of the form of events."""


class Publisher:
    """Makes events of facts, and has an `EventSender` deliver them."""

    def __init__(
        self,
        config: RunConfig,
        options: EventsOptions,
        make: Callable[[], Bus],
        filters: Sequence[Filter] = (),
    ) -> None:
        """Configure the publisher without starting it.

        Args:
            config: The run's configuration.
            options: Those of ``[events]``.
            make: Makes the bus.
            filters: What cleans the data of events.
        """
        self._config, self._options = config, options
        self._make, self._filters = make, filters
        self._sender: EventSender | None = None
        self._service = options.service
        self._lost: dict[str, int] = {}
        self._directory = Path()

    @property
    def content(self) -> bool:
        """Whether events hold what people or models wrote."""
        return self._options.content

    @property
    def flush_s(self) -> float:
        """Longest wait for the bus at the end."""
        return self._options.flush_s

    async def open(self, directory: Path, *, of_runner: bool = False) -> None:
        """Open an outbox in a run's directory, and the bus.

        Raises:
            ConfigError: the outbox cannot be used, or the bus refuses user, password or name.
        """
        options = self._options
        limits = OutboxLimits(
            events=options.outbox_events,
            size=int(options.outbox_mb * 2**20),
            event_size=int(options.event_kb * 2**10),
            call_s=options.timeout_s,
        )
        file = directory if of_runner else directory / OUTBOX
        sender = EventSender(file, self._make, self._event, limits, of_runner=of_runner)
        connect_s = min(options.timeout_s, _CONNECT_S)
        await asyncio.to_thread(sender.open, connect_s=connect_s)
        if sender.process:
            self._service = f"{options.service}/{sender.process}"
        self._directory, self._sender = directory, sender

    def publish(self, make: Callable[[], facts.Facts]) -> None:
        """Queue an event; a fact that cannot be had is a lost event, not an error of the run."""
        sender = self._sender
        if sender is None:
            return
        try:
            fact = make()
        except Exception:  # noqa: BLE001 - telemetry: never raises into the run
            sender.count("events_dropped")
            _log.warning("An event could not be made", exc_info=True)
            return
        sender.put(facts.CHANNEL_OF[type(fact)], fact)

    def _event(self, channel: str, time: float, data: bytes, metadata: dict[str, Any]) -> BusEvent:
        metadata |= {"run": self._config.name, "version": _VERSION}
        fact = json.loads(data) if self._filters else cast("dict[str, Any]", Raw(data))
        for each in self._filters:
            fact = each.cleaned(fact, "events")
        return new_event(channel, self._service, time, fact, metadata)

    def lost(self) -> dict[str, int]:
        """Return everything that was lost so far, by cause."""
        if self._sender is not None:
            self._lost = self._sender.losses()
        return self._lost

    async def close(self, within_s: float) -> None:
        """Wait for the bus; the rest stays in the outbox."""
        sender, self._sender = self._sender, None
        if sender is None:
            return
        closing = asyncio.ensure_future(asyncio.to_thread(sender.close, within_s=within_s))
        waiting = await asyncio.shield(closing)
        if waiting:
            sender.count("events_waiting", waiting)
            _log.warning(
                "%d events wait in the outbox: the bus did not take them. They are sent when the "
                "%s, or by `agl events send %s`",
                waiting,
                "next runner starts here" if sender.process else "run is resumed",
                self._directory,
            )
        self._lost = sender.losses()


class AttemptEvents:
    """Publishes attempts: their hooks are called in the process that runs the agents."""

    def __init__(self, publisher: Publisher) -> None:
        """Set what takes the events."""
        self._publisher = publisher

    @hookimpl
    def agl_rollout_started(self, rollout: Rollout, attempt: Attempt) -> None:
        content = self._publisher.content
        self._publisher.publish(lambda: facts.RolloutStarted.of(rollout, attempt, content=content))

    @hookimpl
    def agl_rollout_finished(
        self, rollout: Rollout, attempt: Attempt, spans: Sequence[Span]
    ) -> None:
        content = self._publisher.content
        self._publisher.publish(
            lambda: facts.RolloutFinished.of(rollout, attempt, spans, content=content)
        )


class EventsObserver(AttemptEvents):
    """Publishes a run's events; implements `agl_core.interfaces.RunObserver` and observing hooks.

    No method waits for the bus, except `following` at its start and end, for a limited time.
    """

    def __init__(
        self, config: RunConfig, publisher: Publisher, describe: Callable[[], TrackedRun]
    ) -> None:
        """Configure the observer without starting it.

        Args:
            config: The run's configuration.
            publisher: Takes the events.
            describe: Returns the description of the run; called when the run has its store's lease.
        """
        super().__init__(publisher)
        self.losses = Losses()
        self._config, self._describe = config, describe
        self._run: TrackedRun | None = None

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Open outbox and bus; an error that ends the block becomes the event ``run:failed``.

        Raises:
            ConfigError: the outbox cannot be used, or the bus refuses user, password or name.
        """
        run = self._run = self._describe()
        publisher = self._publisher
        content = publisher.content
        await publisher.open(run.directory)
        publisher.publish(lambda: facts.ConfigResolved.of(self._config, content=content))
        try:
            yield
        except BaseException as error:
            failed = error
            publisher.publish(lambda: facts.RunFailed.of(run.name, failed, content=content))
            is_error = isinstance(error, Exception)
            flush_s = publisher.flush_s
            await self._close(flush_s if is_error else min(flush_s, _INTERRUPTED_S))
            raise
        finally:
            await self._close(0.0)

    def started(self, config: Any) -> None:
        """Do nothing: the hook of the same time makes the event."""

    def step(self, report: StepReport) -> None:
        self._publisher.publish(lambda: facts.StepFinished.of(report))

    def evaluation(self, evaluation: Evaluation) -> None:
        self._publisher.publish(lambda: facts.EvaluationFinished.of(evaluation))

    async def finish(self, report: Report) -> None:
        """Publish the report of a run that had no error, and wait for the bus.

        The hook of the run's end comes when losses can no longer be counted, so this is earlier.
        """
        self._publisher.publish(lambda: facts.RunFinished.of(report))
        await self._close(self._publisher.flush_s)

    def finished(self, report: Report) -> None:
        """Do nothing: `finish` has published the report."""

    @hookimpl
    def agl_run_started(self, run_id: str, store: Store) -> None:
        del run_id, store
        run = self._run
        if run is not None:
            self._publisher.publish(lambda: facts.RunStarted.of(run))

    @hookimpl
    def agl_trajectories_built(
        self, record: AttemptRecord, trajectories: Sequence[Trajectory]
    ) -> None:
        self._publisher.publish(lambda: facts.TrajectoriesBuilt.of(record, trajectories))

    @hookimpl
    def agl_batch_built(self, batch: Batch, step: int) -> None:
        self._publisher.publish(lambda: facts.BatchBuilt.of(batch, step))

    @hookimpl
    def agl_update_applied(self, update: Update, step: int, losses: Losses) -> None:
        del losses  # the run takes `self.losses` by itself
        self._publisher.publish(lambda: facts.UpdateApplied.of(update, step))
        self.losses.counts = self._publisher.lost()

    @hookimpl
    def agl_resources_published(self, resources: Resources) -> None:
        content = self._publisher.content
        self._publisher.publish(lambda: facts.ResourcesPublished.of(resources, content=content))

    async def _close(self, within_s: float) -> None:
        await self._publisher.close(within_s)
        self.losses.counts = self._publisher.lost()


class RunnerEvents(AttemptEvents):
    """Publishes the events of a runner in a process of its own: those of its attempts.

    The trainer's process publishes all others, and no attempt of another process.
    """

    def __init__(self, publisher: Publisher, directory: Path) -> None:
        """Configure without starting.

        Args:
            publisher: Takes the events.
            directory: The run's directory on this machine.
        """
        super().__init__(publisher)
        self._directory = directory

    @property
    def losses(self) -> Losses:
        """What was lost so far, by cause."""
        return Losses(counts=dict(self._publisher.lost()))

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None]:
        """Open outbox and bus, and close them at the end.

        Raises:
            ConfigError: the outbox cannot be used, or the bus refuses user, password or name.
        """
        await self._publisher.open(self._directory, of_runner=True)
        try:
            yield
        finally:  # a runner ends because it is interrupted
            await self._publisher.close(min(self._publisher.flush_s, _INTERRUPTED_S))


def make_observer(
    config: RunConfig, plugins: PluginManager, describe: Callable[[], TrackedRun]
) -> EventsObserver:
    """Make the observer of ``[events]``, without connecting, and have the hooks call it.

    Raises:
        ConfigError: the address, its scheme or an option is wrong.
        MissingExtraError: the library of the bus is not installed.
    """
    publisher = _publisher(config, plugins)
    observer = EventsObserver(config, publisher, describe)
    plugins.register(observer, Source(name=new_id("events")))
    return observer


def make_runner_observer(config: RunConfig, plugins: PluginManager) -> RunnerEvents | None:
    """Make what publishes the events of a runner's process; None if ``events.runners`` is false.

    Raises:
        ConfigError, MissingExtraError: as for `make_observer`.
    """
    if not _options(config).runners:
        return None
    directory = Path(config.directory) / config.name
    observer = RunnerEvents(_publisher(config, plugins), directory)
    plugins.register(observer, Source(name=new_id("events")))
    return observer


def _publisher(config: RunConfig, plugins: PluginManager) -> Publisher:
    options = _options(config)
    url = options.address()
    bus = make_bus(url, plugins, options.of_bus())  # fails here and not in a thread
    del bus
    return Publisher(
        config,
        options,
        lambda: make_bus(url, plugins, options.of_bus()),
        make_filters(config, plugins),
    )


def _options(config: RunConfig) -> EventsOptions:
    return validate(EventsOptions, config.sections["events"], where="events")
