"""The training loop: rollouts, trajectories, batches, updates and new resources, step by step.

The loop passes records between components. It does not depend on frameworks, algorithms or tensors.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict

import msgspec

from agl_core.config import RunConfig
from agl_core.interfaces import (
    Algorithm,
    AttemptRecord,
    Demonstrator,
    Engine,
    ForestBuilder,
    Gateway,
)
from agl_core.training._batcher import Batcher
from agl_core.training.checkpoint import POLICIES, Checkpoints, CheckpointState
from agl_core.training.evaluate import Evaluator, compare
from agl_core.training.events import Events
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
    Report,
    Resources,
    StepReport,
    Task,
    Update,
)
from agl_core.types.run import RewardTrend, RowCounts, sum_breaks

_log = logging.getLogger(__name__)

Metric = Callable[[Batch], dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopComponents:
    """The components that the loop uses; `agl_core.app` makes them."""

    source: RolloutSource
    groups: GroupBuilder
    algorithm: Algorithm
    forest: ForestBuilder
    gateway: Gateway
    engine: Engine
    evaluator: Evaluator
    checkpoints: Checkpoints
    events: Events
    metrics: Sequence[Metric] = ()


@dataclass(slots=True, kw_only=True)
class RunState:
    """The state of a run so far: everything in a checkpoint besides the weights."""

    step: int = 0
    policies: dict[str, Policy]
    sha256_before: dict[str, str]
    resources: Resources = field(default_factory=Resources)
    steps: list[StepReport] = field(default_factory=list[StepReport])
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])
    losses: Losses = field(default_factory=Losses)
    calls: int = 0
    checkpoint: Path | None = None
    best: Path | None = None
    best_score: Evaluation | None = None


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


class TrainingLoop:
    """The training loop, in which the staleness of every call is bounded."""

    def __init__(
        self,
        config: RunConfig,
        components: LoopComponents,
        *,
        policies: Sequence[Policy],
        tasks: Sequence[Task],
        val_tasks: Sequence[Task] = (),
        config_digest: str,
    ) -> None:
        """Build the loop.

        Args:
            config: The run's configuration.
            components: The components that the loop uses.
            policies: All policies of the run, in config order.
            tasks: Training tasks; not used by an algorithm that is a `Demonstrator`.
            val_tasks: Held-out tasks, evaluated before, during and after training.
            config_digest: Digest of the configuration, written into checkpoints.
        """
        self._config = config
        self._components = components
        self._policies = {policy.name: policy for policy in policies}
        self._trained = [policy.name for policy in policies if policy.trainable]
        algorithm = components.algorithm
        self._demonstrator = algorithm if isinstance(algorithm, Demonstrator) else None
        self._tasks_per_step = 0 if self._demonstrator else config.train.tasks_per_step
        self._sampler = TaskSampler(tasks, seed=config.seed)
        self._val_tasks = val_tasks
        self._digest = config_digest
        self._warned: set[str] = set()
        """Metrics whose value was not finite."""
        self._batcher = Batcher(components.algorithm, components.forest)
        self._updates = Updates(
            components.engine, components.gateway, drain_timeout_s=config.gateway.drain_timeout_s
        )

    async def prepare(self, start: tuple[Path, CheckpointState] | None) -> RunState:
        """Load the checkpoint to resume from, and cancel the open rollouts of an interrupted run.

        Call this before any runner claims rollouts.
        """
        engine = self._components.engine
        progress = RunState(
            policies=dict(self._policies),
            sha256_before={name: await engine.fingerprint(name) for name in self._policies},
        )
        source, run_id = self._components.source, self._config.name
        await source.abandon(run_id)
        if start is not None:
            await self._restore(progress, *start)
        progress.losses.add("rollouts_abandoned", await source.count_since(source.newest, run_id))
        progress.resources = await self._publish(progress.policies, step=progress.step)
        return progress

    async def run(self, progress: RunState) -> Report:
        """Train to the configured step and return the report; errors of components are raised."""
        started = time.perf_counter()
        steps = self._config.train.steps
        if progress.step == 0 and self._val_tasks:
            await self._evaluate(progress)
        if progress.step < steps and self._demonstrator is None:
            self._components.events.stage(f"running the agents for step {progress.step + 1}")
        prefetcher = self._ahead(progress)
        try:
            while progress.step < steps:
                await self._step(progress, prefetcher)
                await self._after_step(progress, prefetcher)
        finally:
            await prefetcher.close()
        return await self._report(progress, wall_s=time.perf_counter() - started)

    async def _restore(self, progress: RunState, path: Path, state: CheckpointState) -> None:
        for name in self._trained:
            version = state.versions[name]
            await self._components.engine.load(name, str(path / POLICIES / name), version=version)
            await self._serve(progress, name, version)
        progress.step = state.step
        progress.sha256_before = state.sha256_before
        progress.steps, progress.evaluations = list(state.steps), list(state.evaluations)
        progress.losses.merge(Losses(counts=state.lost))
        progress.losses.add("rollouts_abandoned", state.ahead)
        progress.calls = state.calls
        progress.checkpoint = path
        self._components.source.newest = state.newest_rollout
        self._restore_best(progress)

    def _restore_best(self, progress: RunState) -> None:
        """Set the best evaluated checkpoint among those that still exist."""
        paths = {
            int(path.name.rpartition("-")[2]): path for path in self._components.checkpoints.all()
        }
        for evaluation in progress.evaluations:
            if evaluation.step in paths:
                self._keep_if_best(progress, evaluation, paths[evaluation.step])

    def _ahead(self, progress: RunState) -> Prefetcher:
        train = self._config.train

        def plan(step: int) -> RolloutPlan:
            return RolloutPlan(
                tasks=self._sampler.step(step, size=self._tasks_per_step),
                samples=self._config.algorithm.group_size,
                mode="train",
                step=step,
                resources_version=progress.resources.version,
            )

        return Prefetcher(
            self._components.source, plan, ahead=train.max_staleness, steps=train.steps
        )

    async def _step(self, progress: RunState, prefetcher: Prefetcher) -> None:
        """Run one step: collect its attempts or examples, build batches, update the weights."""
        started = time.perf_counter()
        records = await prefetcher.take(progress.step)
        groups = await self._groups(records, progress)
        for record, adapted in groups.adapted:
            paths = [path for agent in adapted.trajectories.values() for path in agent]
            self._components.events.notify(
                "agl_trajectories_built", record=record, trajectories=paths
            )
        batches, lost = self._batcher.build(groups.groups, step=progress.step)
        groups.losses.merge(lost)
        trained = await self._update(progress, batches, groups.losses)
        await self._components.source.consume(records)
        progress.step += 1
        await self._record_step(progress, groups, trained, time.perf_counter() - started)

    async def _groups(self, records: Sequence[AttemptRecord], progress: RunState) -> StepGroups:
        """Return the groups of a step: those of its attempts, or examples of the algorithm."""
        if self._demonstrator is None:
            return self._components.groups.build(records)
        groups, losses = await self._demonstrator.demonstrate(
            progress.step, progress.policies, self._components.engine, seed=self._config.seed
        )
        return StepGroups(groups=groups, adapted=[], failures={}, losses=losses)

    async def _update(
        self, progress: RunState, batches: Sequence[Batch], losses: Losses
    ) -> _Trained:
        """Train on the batches, serve the new versions and publish the resources."""
        events, trained = self._components.events, _Trained()
        for batch in batches:
            events.notify("agl_batch_built", batch=batch, step=progress.step)

        async def serve(policy: str, version: int) -> None:
            await self._serve(progress, policy, version)

        versions = {batch.policy: progress.policies[batch.policy].version for batch in batches}
        updates = await self._updates.take(batches, serve)
        for batch, update in zip(batches, updates, strict=True):
            stale = versions[batch.policy] - min(batch.versions, default=versions[batch.policy])
            metrics = self._metrics(batch, update, stale, one=len(batches) == 1)
            trained.add(batch, update, self._finite(metrics, losses))
            losses.merge(Losses(counts=update.lost))
            events.notify("agl_update_applied", update=update, step=progress.step)
        progress.resources = await self._publish(progress.policies, step=progress.step + 1)
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

    async def _serve(self, progress: RunState, name: str, version: int) -> None:
        policy = msgspec.structs.replace(progress.policies[name], version=version)
        progress.policies[name] = policy
        await self._components.gateway.route(policy, self._components.engine.backend(name))

    async def _publish(self, policies: Mapping[str, Policy], *, step: int) -> Resources:
        made = make_resources(self._config, self._components.gateway, policies.values(), step=step)
        published = await self._components.source.publish(made)
        self._components.events.notify("agl_resources_published", resources=published)
        return published

    async def _record_step(
        self,
        progress: RunState,
        groups: StepGroups,
        trained: _Trained,
        wall_s: float,
    ) -> None:
        losses = groups.losses
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

    async def _after_step(self, progress: RunState, prefetcher: Prefetcher) -> None:
        """Write a checkpoint and evaluate at the configured steps and after the last one."""
        train, step = self._config.train, progress.step
        last = step == train.steps
        evaluate = bool(self._val_tasks) and (
            last or (train.eval_every > 0 and step % train.eval_every == 0)
        )
        if evaluate:
            await self._evaluate(progress)
        if last or evaluate or step % train.checkpoint_every == 0:
            await self._checkpoint(progress, prefetcher)

    async def _evaluate(self, progress: RunState) -> None:
        self._components.events.stage(f"evaluating on {len(self._val_tasks)} tasks")
        evaluation = await self._components.evaluator.evaluate(
            self._val_tasks, step=progress.step, resources_version=progress.resources.version
        )
        progress.losses.merge(await self._components.events.take_losses())
        progress.evaluations.append(evaluation)
        self._components.events.evaluation(evaluation)

    async def _checkpoint(self, progress: RunState, prefetcher: Prefetcher) -> None:
        state = CheckpointState(
            step=progress.step,
            config_digest=self._digest,
            versions={name: policy.version for name, policy in progress.policies.items()},
            sha256_before=progress.sha256_before,
            steps=progress.steps,
            evaluations=progress.evaluations,
            lost=progress.losses.counts,
            calls=progress.calls,
            newest_rollout=self._components.source.newest,
            ahead=prefetcher.rollouts,
        )
        progress.checkpoint = await self._components.checkpoints.save(
            state, engine=self._components.engine, policies=self._trained, best=progress.best
        )
        evaluation = progress.evaluations[-1] if progress.evaluations else None
        if evaluation is not None and evaluation.step == progress.step:
            self._keep_if_best(progress, evaluation, progress.checkpoint)

    def _keep_if_best(self, progress: RunState, evaluation: Evaluation, path: Path) -> None:
        best = progress.best_score.score if progress.best_score is not None else None
        if best is not None and best.n != evaluation.score.n:
            best = None  # a resumed run may validate on other tasks, so scores are not comparable
        if compare(best, evaluation.score).winner == "candidate":
            progress.best, progress.best_score = path, evaluation

    async def _report(self, progress: RunState, *, wall_s: float) -> Report:
        after = {name: await self._components.engine.fingerprint(name) for name in self._policies}
        best = progress.best or progress.checkpoint
        progress.losses.merge(await self._components.events.take_losses())
        seen = {channel for step in progress.steps for channel in step.channels}
        for channel in sorted(set(self._config.channel_weights) - seen):
            progress.losses.add(f"unused_weight_of_channel_{channel}")
        return Report(
            run_id=self._config.name,
            directory=str(Path(self._config.directory) / self._config.name),
            steps=progress.steps,
            evaluations=progress.evaluations,
            policies={
                name: {
                    "trainable": policy.trainable,
                    "agents": list(policy.agents),
                    "version": policy.version,
                    "sha256_before": progress.sha256_before[name],
                    "sha256_after": after[name],
                    "path": self._path_of(policy, progress.checkpoint),
                }
                for name, policy in progress.policies.items()
            },
            lost=dict(progress.losses.counts),
            breaks=sum_breaks(step.breaks for step in progress.steps),
            calls=progress.calls,
            **summary(progress.steps),
            wall_s=wall_s,
            best=str(best) if best is not None else None,
        )

    def _path_of(self, policy: Policy, checkpoint: Path | None) -> str:
        """Return the path of the policy's weights at the end of the run."""
        if policy.trainable and checkpoint is not None:
            return str(checkpoint / POLICIES / policy.name)
        return policy.model


_SPAN: Final = 5
"""Greatest number of first and of last steps over which rewards are averaged."""


class ReportSummary(TypedDict):
    """Fields of a `Report` that are computed from its steps."""

    reward: RewardTrend | None
    rows: RowCounts
    seconds_per_step: float | None


def summary(steps: Sequence[StepReport]) -> ReportSummary:
    """Return the reward trend, the number of trained calls by agent and the median step time."""
    rows = sum((Counter(step.rows) for step in steps), Counter[str]())
    rewards = [step.reward for step in steps if step.reward is not None]
    span = min(_SPAN, max(len(rewards) // 2, 1))
    return ReportSummary(
        reward=RewardTrend(first=_mean(rewards[:span]), last=_mean(rewards[-span:]))
        if rewards
        else None,
        rows=RowCounts(by_agent=dict(sorted(rows.items()))),
        seconds_per_step=statistics.median(step.wall_s for step in steps) if steps else None,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


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
