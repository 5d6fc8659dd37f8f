"""The steps of an algorithm phase: collect rollouts, build batches, update weights, publish."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agl_core.config import RunConfig
from agl_core.interfaces import (
    Adapter,
    Algorithm,
    AlgorithmSetup,
    AttemptRecord,
    Demonstrator,
    Engine,
    ForestBuilder,
    Gateway,
    Observer,
    show_stage,
)
from agl_core.plugins import PluginManager
from agl_core.training._batcher import Batcher
from agl_core.training.checkpoint import Checkpoints
from agl_core.training.evaluate import Evaluator
from agl_core.training.groups import GroupBuilder, StepGroups
from agl_core.training.rollouts import (
    Prefetcher,
    RolloutPlan,
    RolloutSource,
    TaskSampler,
    make_resources,
)
from agl_core.types import (
    Batch,
    Evaluation,
    Losses,
    Policy,
    PromptTemplate,
    Resources,
    StepReport,
    Update,
)
from agl_core.types.run import Tuned, sum_breaks

_log = logging.getLogger(__name__)

Metric = Callable[[Batch], dict[str, float]]


class Notify(Protocol):
    """A function that calls every plugin's implementation of an observing hook."""

    def __call__(self, hook: str, **arguments: Any) -> None: ...


class Events:
    """The events of a run: sends them to plugins and observers, and collects counted losses."""

    def __init__(
        self,
        notify: Notify,
        observers: Sequence[Observer],
        *,
        take_losses: Callable[[], Awaitable[Losses]],
    ) -> None:
        """Configure the receivers of events.

        Args:
            notify: Calls the plugins' hooks.
            observers: Observers, called in this order.
            take_losses: Returns the components' losses since its last call.
        """
        self.notify = notify
        self.take_losses = take_losses
        self._observers = tuple(observers)

    def stage(self, doing: str) -> None:
        show_stage(self._observers, doing)

    def step(self, report: StepReport) -> None:
        for observer in self._observers:
            observer.step(report)

    def evaluation(self, evaluation: Evaluation) -> None:
        for observer in self._observers:
            observer.evaluation(evaluation)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmPhase:
    """A phase that trains weights."""

    config: RunConfig
    """The run's configuration with the phase's ``[algorithm]``."""
    algorithm: Algorithm
    setup: AlgorithmSetup

    @property
    def engine_settings(self) -> tuple[object, ...]:
        """Everything in the phase that an engine depends on."""
        same = dataclasses.replace(self.setup, name="", loss_factory=dict)
        return same, self.algorithm.loss, dict(self.algorithm.loss_options)


def reconfigures(phases: Mapping[int, AlgorithmPhase]) -> bool:
    """Return whether an engine trains with different settings in these phases."""
    settings = [phase.engine_settings for phase in phases.values()]
    return any(each != settings[0] for each in settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopComponents:
    """The components that the loop uses; `agl_core.app` makes them."""

    source: RolloutSource
    groups: GroupBuilder
    phases: Mapping[int, AlgorithmPhase]
    """The algorithm phases by number; the other phases tune prompts."""
    forest: ForestBuilder
    adapter: Adapter
    gateway: Gateway
    engine: Engine
    evaluator: Evaluator
    checkpoints: Checkpoints
    events: Events
    plugins: PluginManager
    metrics: Sequence[Metric] = ()


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state of a run so far: everything in a checkpoint besides the weights."""

    phase: int = 0
    """Number of the phase to run or to continue."""
    step: int = 0
    policies: dict[str, Policy]
    prompts: dict[str, PromptTemplate]
    sha256_before: dict[str, str]
    resources: Resources = field(default_factory=Resources)
    steps: list[StepReport] = field(default_factory=list[StepReport])
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])
    tuned: dict[int, Tuned] = field(default_factory=dict[int, Tuned])
    """Results of the prompt phases by number."""
    losses: Losses = field(default_factory=Losses)
    calls: int = 0
    checkpoint: Path | None = None
    best: Path | None = None
    best_score: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """What agents are served with: the versions of the weights, and the resources."""

    config: RunConfig
    components: LoopComponents
    progress: RunState

    async def route(self, name: str, version: int) -> None:
        """Serve a version of a policy from now on."""
        policies, components = self.progress.policies, self.components
        policies[name] = msgspec.structs.replace(policies[name], version=version)
        await components.gateway.route(policies[name], components.engine.backend(name))

    async def publish(self) -> None:
        """Publish the current policies and prompts for the next rollouts."""
        self.progress.resources = await self.publish_with(self.progress.prompts)

    async def publish_with(self, prompts: Mapping[str, PromptTemplate]) -> Resources:
        """Publish the current policies with these prompts, as a version of the resources."""
        made = make_resources(
            self.config,
            self.components.gateway,
            self.progress.policies.values(),
            step=self.progress.step,
            prompts=prompts,
        )
        published = await self.components.source.publish(made)
        self.components.events.notify("agl_resources_published", resources=published)
        return published


@dataclass(slots=True)
class _Trained:
    """The sums and metrics of a step's updates."""

    metrics: dict[str, float] = field(default_factory=dict[str, float])
    rows: Counter[str] = field(default_factory=Counter[str])
    tokens: int = 0

    def add(self, batch: Batch, update: Update, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)
        self.tokens += len(batch.targets)
        self.rows.update(update.rows)


class Steps:
    """The steps of one phase, in which the staleness of every call is bounded."""

    def __init__(
        self, phase: AlgorithmPhase, serving: Serving, *, sampler: TaskSampler, end: int
    ) -> None:
        """Prepare the phase without queueing rollouts.

        Args:
            phase: The phase.
            serving: The components and the progress of the run.
            sampler: Tasks; not used by an algorithm that is a `Demonstrator`.
            end: Number of the run's steps at the end of the phase; no rollout is queued for later
                ones.
        """
        self._serving, self._progress = serving, serving.progress
        self._components = components = serving.components
        self._config = phase.config
        demonstrator = phase.algorithm if isinstance(phase.algorithm, Demonstrator) else None
        self._demonstrator = demonstrator
        self._tasks_per_step = 0 if demonstrator else phase.config.train.tasks_per_step
        self._sampler = sampler
        self._end = end
        self._warned: set[str] = set()
        """Metrics whose value was not finite."""
        self._batcher = Batcher(phase.algorithm, components.forest)
        self._updates = Updates(
            components.engine,
            components.gateway,
            drain_timeout_s=phase.config.gateway.drain_timeout_s,
        )
        self._prefetcher = Prefetcher(
            components.source, self._plan, ahead=phase.config.train.max_staleness, steps=end
        )

    async def run(self, after: Callable[[int], Awaitable[None]]) -> None:
        """Take the steps that are left of the phase; errors of components are raised.

        Args:
            after: Called after each step with the number of rollouts queued for later steps.
        """
        if self._progress.step < self._end and self._demonstrator is None:
            self._components.events.stage(f"running the agents for step {self._progress.step + 1}")
        try:
            while self._progress.step < self._end:
                await self._step()
                await after(self._prefetcher.rollouts)
        finally:
            await self._prefetcher.close()

    def _plan(self, step: int) -> RolloutPlan:
        return RolloutPlan(
            tasks=self._sampler.step(step, size=self._tasks_per_step),
            samples=self._config.algorithm.group_size,
            mode="train",
            step=step,
            resources_version=self._progress.resources.version,
        )

    async def _step(self) -> None:
        """Run one step: collect its attempts or examples, build batches, update the weights."""
        started = time.perf_counter()
        progress, components = self._progress, self._components
        records = await self._prefetcher.take(progress.step)
        groups = await self._groups(records)
        for record, adapted in groups.adapted:
            paths = [path for agent in adapted.trajectories.values() for path in agent]
            components.events.notify("agl_trajectories_built", record=record, trajectories=paths)
        batches, lost = self._batcher.build(groups.groups, step=progress.step)
        groups.losses.merge(lost)
        trained = await self._update(batches, groups.losses)
        await components.source.consume(records)
        await self._record(groups, trained, time.perf_counter() - started)

    async def _groups(self, records: Sequence[AttemptRecord]) -> StepGroups:
        """Return the groups of a step: those of its attempts, or examples of the algorithm."""
        progress, components = self._progress, self._components
        if self._demonstrator is None:
            return components.groups.build(records)
        groups, losses = await self._demonstrator.demonstrate(
            progress.step, progress.policies, components.engine, seed=self._config.seed
        )
        return StepGroups(groups=groups, adapted=[], failures={}, losses=losses)

    async def _update(self, batches: Sequence[Batch], losses: Losses) -> _Trained:
        """Train on the batches, serve the new versions and publish the resources."""
        events, progress, trained = self._components.events, self._progress, _Trained()
        for batch in batches:
            events.notify("agl_batch_built", batch=batch, step=progress.step)
        versions = {batch.policy: progress.policies[batch.policy].version for batch in batches}
        updates = await self._updates.take(batches, self._serving.route)
        for batch, update in zip(batches, updates, strict=True):
            stale = versions[batch.policy] - min(batch.versions, default=versions[batch.policy])
            metrics = self._metrics(batch, update, stale, one=len(batches) == 1)
            trained.add(batch, update, self._finite(metrics, losses))
            losses.merge(Losses(counts=update.lost))
            events.notify("agl_update_applied", update=update, step=progress.step, losses=losses)
        progress.step += 1
        await self._serving.publish()
        return trained

    def _metrics(self, batch: Batch, update: Update, stale: int, *, one: bool) -> dict[str, float]:
        """Return the metrics of a step, with the policy as prefix if several policies train."""
        found = {**batch.stats, **update.metrics, "staleness": float(stale)}
        for metric in self._components.metrics:
            found.update(metric(batch))
        return found if one else {f"{update.policy}/{key}": value for key, value in found.items()}

    def _finite(self, metrics: Mapping[str, float], losses: Losses) -> dict[str, float]:
        """Return the metrics without NaN and infinity, which are counted and logged."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        losses.add("metrics_not_finite", len(metrics) - len(finite))
        for name in sorted(metrics.keys() - finite.keys() - self._warned):
            self._warned.add(name)
            _log.warning(
                "Metric %r is %s and left out of the report; later values of this metric that are "
                "not finite are only counted, as metrics_not_finite",
                name,
                metrics[name],
            )
        return finite

    async def _record(self, groups: StepGroups, trained: _Trained, wall_s: float) -> None:
        progress, losses = self._progress, groups.losses
        losses.merge(await self._components.events.take_losses())
        report = StepReport(
            step=progress.step,
            steps=self._config.train.steps,
            reward=groups.reward,
            channels=groups.channels,
            rollouts=self._tasks_per_step * self._config.algorithm.group_size,
            calls=sum(adapted.calls for _, adapted in groups.adapted),
            tokens=trained.tokens,
            failures=groups.failures,
            lost=dict(losses.counts),
            breaks=sum_breaks(adapted.breaks for _, adapted in groups.adapted),
            rows=dict(trained.rows),
            metrics=trained.metrics,
            wall_s=wall_s,
        )
        progress.steps.append(report)
        progress.losses.merge(losses)
        progress.calls += report.calls
        self._components.events.step(report)


Serve = Callable[[str, int], Awaitable[None]]
"""A function that routes a policy's calls to the engine under the given version."""


class Updates:
    """The updates of a step, made so that every call is answered by exactly one version.

    Weights change only while no call is in flight; new calls wait. If the engine can train while it
    serves, calls wait only for the change of weights, otherwise for the whole update.
    """

    def __init__(self, engine: Engine, gateway: Gateway, *, drain_timeout_s: float) -> None:
        """Configure engine and gateway.

        Args:
            engine: The engine that trains.
            gateway: The gateway that makes calls wait.
            drain_timeout_s: Seconds after which calls in flight are aborted and retried.
        """
        self._engine = engine
        self._gateway = gateway
        self._drain_timeout_s = drain_timeout_s

    async def take(self, batches: Sequence[Batch], serve: Serve) -> list[Update]:
        """Train on the batches, in this order, and serve the new versions."""
        engine = self._engine
        if engine.overlaps:
            updates = [await engine.train(batch) for batch in batches]
            async with self._no_calls():
                for update in updates:
                    await engine.publish(update.policy)
                    await serve(update.policy, update.version)
            return updates
        updates: list[Update] = []
        async with self._no_calls():
            for batch in batches:
                update = await engine.update(batch)
                await serve(update.policy, update.version)
                updates.append(update)
        return updates

    @asynccontextmanager
    async def _no_calls(self) -> AsyncGenerator[None]:
        await self._gateway.pause()
        try:
            await self._gateway.drain(timeout_s=self._drain_timeout_s)
            yield
        finally:
            await self._gateway.resume()
