"""A runner process, for a run whose trainer is another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Protocol

from agl_core.app import (
    check_apart,
    make_agent,
    make_integrations,
    make_scorer,
    make_store,
    remote_gateway,
    with_store,
)
from agl_core.config import RunConfig
from agl_core.plugins import PluginManager
from agl_core.runner import Runner, RunnerOptions
from agl_core.serving import withheld_key
from agl_core.tracing import attach
from agl_core.types import Attempt, Losses, Rollout, Span

ReportProgress = Callable[[int, Mapping[str, int]], None]
"""Takes the number of ended attempts and the losses by cause."""


class RunnerObserver(Protocol):
    """What follows a runner, for a section of the configuration."""

    @property
    def losses(self) -> Losses:
        """What it failed to take, by cause; read after every attempt and at the end."""
        ...

    def following(self) -> AbstractAsyncContextManager[None]:
        """Return the context that holds while attempts may run; entered once."""
        ...


async def serve_runner(
    config: RunConfig,
    plugins: PluginManager,
    *,
    report: ReportProgress,
    max_abandoned: int | None = None,
) -> None:
    """Run the attempts of a run until cancelled, or until `max_abandoned` is exceeded.

    Args:
        config: The run's configuration with agent, rewards, store and gateway.
        plugins: Loaded plugins.
        report: Called with the counts so far after every attempt, and at the end.
        max_abandoned: See `RunnerOptions`.

    Raises:
        ConfigError: store or gateway cannot be shared, refuse the key, or have another version.
        AglError: store or gateway cannot be reached.
    """
    with withheld_key():
        await _serve(config, plugins, report=report, max_abandoned=max_abandoned)


async def _serve(
    config: RunConfig,
    plugins: PluginManager,
    *,
    report: ReportProgress,
    max_abandoned: int | None,
) -> None:
    config = with_store(config, plugins)
    gateway_url = check_apart(config, plugins)
    agent = make_agent(config, None)
    scorer = make_scorer(config, plugins, None)
    observers = _observers(config, plugins)
    counts = _Counts(plugins, report, observers)
    plugins.observe("agl_config_resolved", config=config)
    async with AsyncExitStack() as stack:
        store = make_store(config, plugins, Path(config.directory) / config.name)
        await store.open()
        stack.push_async_callback(store.close)
        gateway = remote_gateway(gateway_url, plugins)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        stack.callback(counts.report)
        for observer in observers:
            await stack.enter_async_context(observer.following())
        stack.callback(attach(integrations=make_integrations(plugins)).detach)
        options = RunnerOptions(
            concurrency=config.rollout.concurrency,
            outside=True,
            max_abandoned=max_abandoned,
            on_started=counts.started,
            on_finished=counts.finished,
        )
        counts.runner = runner = Runner(store, gateway, agent, scorer, options)
        await runner.run(asyncio.Event())


def _observers(config: RunConfig, plugins: PluginManager) -> list[RunnerObserver]:
    """Make what sections have follow a runner: ``<section>.runner`` of the observers."""
    registry = plugins.registry("observers")
    names = [name for section in config.sections if (name := f"{section}.runner") in registry]
    made: list[RunnerObserver | None] = [registry.create(name, config, plugins) for name in names]
    return [each for each in made if each is not None]


class _Counts:
    """Calls the observe hooks for attempts, and `report` with the number of ended attempts."""

    def __init__(
        self, plugins: PluginManager, report: ReportProgress, observers: Sequence[RunnerObserver]
    ) -> None:
        self._observe = plugins.observe
        self._report, self._observers = report, observers
        self._ended = 0
        self.runner: Runner | None = None

    def started(self, rollout: Rollout, attempt: Attempt) -> None:
        self._observe("agl_rollout_started", rollout=rollout, attempt=attempt)

    def finished(self, rollout: Rollout, attempt: Attempt, spans: Sequence[Span]) -> None:
        self._observe("agl_rollout_finished", rollout=rollout, attempt=attempt, spans=spans)
        self._ended += 1
        self.report()

    def report(self) -> None:
        if self.runner is None:
            return
        lost = Losses()
        lost.merge(self.runner.losses)
        for observer in self._observers:
            lost.merge(observer.losses)
        self._report(self._ended, lost.counts)
