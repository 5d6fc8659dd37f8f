"""The rollouts of a step: their tasks, their capture settings, and the prefetching of later steps."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agl_core import semconv
from agl_core.clocks import new_id, wall
from agl_core.config import RunConfig
from agl_core.config.policies import capture_settings
from agl_core.errors import ConfigError
from agl_core.interfaces import AttemptRecord, Gateway, Store
from agl_core.text import exact_bytes
from agl_core.thinking import DEFAULT_TAGS
from agl_core.types import (
    LLM,
    FailureKind,
    Limits,
    Losses,
    Mode,
    Policy,
    PromptTemplate,
    Resources,
    Rollout,
    RolloutQuery,
    RolloutStatus,
    Span,
    Task,
)
from agl_core.types.rollout import CAPTURE, PROMPT_BUDGETS, THINKING_TAGS


class TaskSampler:
    """A sampler of tasks in shuffled epochs; the tasks of a step depend only on seed and step."""

    def __init__(self, tasks: Sequence[Task], *, seed: int) -> None:
        """Build a sampler.

        Raises:
            ConfigError: two tasks have the same id.
        """
        ids = [task.id for task in tasks]
        if len(set(ids)) != len(ids):
            twice = next(id_ for id_ in ids if ids.count(id_) > 1)
            raise ConfigError(f"Task id {twice!r} appears more than once: ids must be unique")
        self._tasks = list(tasks)
        self._seed = seed

    def step(self, step: int, *, size: int) -> list[Task]:
        """Return the `size` tasks of a step (0-based), which are distinct within an epoch.

        Raises:
            ConfigError: there are no tasks.
        """
        count = len(self._tasks)
        if size and not count:
            raise ConfigError("There are no training tasks: the data set is empty")
        positions = range(step * size, (step + 1) * size)
        permutations = {epoch: self._order(epoch) for epoch in {at // count for at in positions}}
        return [self._tasks[permutations[at // count][at % count]] for at in positions]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed}:{epoch}").shuffle(order)  # noqa: S311 (not for secrets)
        return order


def derive_seed(*parts: object) -> int:
    """Return a 31-bit seed from all parts, equal in every process and on every platform."""
    digest = hashlib.sha256(exact_bytes("\x1f".join(str(part) for part in parts))).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The tasks of a step or an evaluation, with the number of rollouts per task, and the mode."""

    tasks: Sequence[Task]
    samples: int
    mode: Mode
    step: int
    resources_version: int


class RolloutSource:
    """The source of rollouts, whose seeds depend only on the run's seed, step, task and sample."""

    def __init__(self, store: Store, config: RunConfig) -> None:
        self.store = store
        self._config = config
        self._capture = capture_settings(config)
        self.losses = Losses()
        """Losses that the collected attempts do not have: retried attempts, counted as
        ``attempts_retried_<kind>``, and losses that runners in other processes counted."""
        self.newest = ""
        """Id of the newest rollout that was queued."""

    def make(self, plan: RolloutPlan) -> list[Rollout]:
        """Make one rollout per task and sample; rollouts of the same task share a group."""
        return [
            self._rollout(plan, task, sample)
            for task in plan.tasks
            for sample in range(plan.samples)
        ]

    async def run(self, plan: RolloutPlan) -> list[AttemptRecord]:
        """Queue a plan's rollouts, wait for them, and return their attempts in the plan's order."""
        return await self.collect(await self.queue(self.make(plan)))

    async def queue(self, rollouts: Sequence[Rollout]) -> list[str]:
        """Queue rollouts for the runners; return their ids in this order."""
        ids = [rollout.id for rollout in await self.store.enqueue(rollouts)]
        self.newest = max([self.newest, *ids])
        return ids

    async def collect(self, ids: Sequence[str]) -> list[AttemptRecord]:
        """Wait until these rollouts are final, and return their last attempts in this order."""
        final = await self.store.wait(ids)
        await self._grace(final)
        spans = await self.store.spans(ids)
        self._count(final, spans)
        by_attempt: dict[str, list[Span]] = {}
        for span in spans:
            by_attempt.setdefault(span.attempt_id, []).append(span)
        return [
            AttemptRecord(
                rollout=rollout,
                attempt=rollout.attempts[-1],
                spans=by_attempt.get(rollout.attempts[-1].id, []),
            )
            for rollout in final
            if rollout.attempts
        ]

    async def consume(self, records: Sequence[AttemptRecord]) -> None:
        """Mark these rollouts as consumed in the store."""
        await self.store.consume([record.rollout.id for record in records])

    async def publish(self, resources: Resources) -> Resources:
        """Store a new version of the resources."""
        return await self.store.publish(resources)

    async def abandon(self, run_id: str) -> None:
        """Cancel the queued and running rollouts of an interrupted run."""
        query = RolloutQuery(
            run_id=run_id, statuses=(RolloutStatus.QUEUED, RolloutStatus.RUNNING), limit=100_000
        )
        left = await self.store.rollouts(query)
        if left:
            await self.store.cancel(
                [rollout.id for rollout in left], reason="left by an interrupted run"
            )

    async def count_since(self, newest: str, run_id: str) -> int:
        """Return the number of a run's rollouts that are newer than `newest`, in any status."""
        found = 0
        query = RolloutQuery(run_id=run_id, after_id=newest or None)
        while page := await self.store.rollouts(query):
            found += len(page)
            query = msgspec.structs.replace(query, after_id=page[-1].id)
        return found

    def _count(self, final: Sequence[Rollout], spans: Sequence[Span]) -> None:
        for rollout in final:
            if not rollout.attempts:
                self.losses.add("rollouts_without_attempt")
            for attempt in rollout.attempts[:-1]:
                kind = attempt.failure.kind if attempt.failure is not None else FailureKind.LOST
                self.losses.add(f"attempts_retried_{kind.value}")
        for span in spans:
            self.losses.merge(Losses(counts=span.attributes.get(semconv.AGL_LOST, {})))

    async def _grace(self, final: Sequence[Rollout]) -> None:
        """Wait until `reward_grace_s` after the last attempt's end, for late rewards."""
        grace_s = self._config.capture.reward_grace_s
        attempts = [rollout.attempt for rollout in final]
        ended = max((each.ended_at or 0.0 for each in attempts if each is not None), default=0.0)
        left_s = ended + grace_s - wall()
        if grace_s and left_s > 0:
            await asyncio.sleep(min(left_s, grace_s))  # the clock may have been set back

    def _rollout(self, plan: RolloutPlan, task: Task, sample: int) -> Rollout:
        config = self._config
        use = f"train-{plan.step}" if plan.mode == "train" else "evaluate"
        return Rollout(
            id=new_id("ro"),
            task=task,
            run_id=config.name,
            mode=plan.mode,
            group_id=f"{plan.mode}-{plan.step}-{task.id}",
            step=plan.step,
            seed=derive_seed(config.seed, use, task.id, sample),
            resources_version=plan.resources_version,
            limits=self._limits(),
            created_at=wall(),
            metadata=self._metadata(plan.mode, sample),
        )

    def _metadata(self, mode: Mode, sample: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {"sampling": self._sampling(mode), "sample": sample}
        if self._config.rollout.resume == "replay":
            metadata["resume"] = "replay"
        if (tags := self._config.capture.thinking_tags) != list(DEFAULT_TAGS):
            metadata[THINKING_TAGS] = tags
        if self._capture:
            metadata[CAPTURE] = self._capture
        if budgets := self._config.prompt_budgets:
            metadata[PROMPT_BUDGETS] = dict(budgets)
        return metadata

    def _limits(self) -> Limits:
        rollout = self._config.rollout
        return Limits(
            timeout_s=rollout.timeout_s,
            lease_s=rollout.lease_s,
            max_attempts=rollout.max_attempts,
            reward_grace_s=self._config.capture.reward_grace_s,
            retry_on=tuple(kind for kind in FailureKind if rollout.failures.get(kind) == "retry"),
        )

    def _sampling(self, mode: Mode) -> dict[str, Any]:
        rollout = self._config.rollout
        temperature = rollout.temperature if mode == "train" else self._config.eval.temperature
        wanted = {"temperature": temperature, "max_tokens": rollout.max_tokens}
        return {name: value for name, value in wanted.items() if value is not None}


def configured_prompts(config: RunConfig) -> dict[str, PromptTemplate]:
    """Return the prompts whose text is in the configuration; captured ones are learned later."""
    return {
        name: PromptTemplate(template=prompt.text, agents=tuple(prompt.agents))
        for name, prompt in config.prompts.items()
        if prompt.text is not None
    }


def make_resources(
    config: RunConfig,
    gateway: Gateway,
    policies: Iterable[Policy],
    *,
    step: int,
    prompts: Mapping[str, PromptTemplate] | None = None,
) -> Resources:
    """Return resources without a version: one `LLM` per policy, and the prompts.

    They contain no API key, because they are stored; the runner gives each attempt its own key.

    Args:
        config: The run's configuration.
        gateway: Serves the policies.
        policies: The policies with their current versions.
        step: Number of finished steps.
        prompts: The prompts by name; None: those of the configuration.
    """
    llms = {
        policy.name: LLM(
            model=policy.name,
            base_url=f"{gateway.url}/v1",
            policy=policy.name,
            version=policy.version,
        )
        for policy in policies
    }
    served = configured_prompts(config) if prompts is None else prompts
    return Resources(run_id=config.name, step=step, items={**llms, **served})


class Prefetcher:
    """The rollouts of the current step and of up to `ahead` later steps, which run in parallel.

    The rollouts of step n are queued only once the weights from which step n - `ahead` starts are
    served. Every step makes at most one version of a policy, so the staleness of a call is at most
    `ahead`.
    """

    def __init__(
        self,
        source: RolloutSource,
        plan: Callable[[int], RolloutPlan],
        *,
        ahead: int,
        steps: int,
    ) -> None:
        """Configure the prefetcher without queueing rollouts.

        Args:
            source: Queues and collects rollouts.
            plan: Returns the plan of a step with the current version of the resources.
            ahead: Number of steps to start beyond the current one.
            steps: Number of steps of the run; no step is started beyond them.
        """
        self._source = source
        self._plan = plan
        self._ahead = ahead
        self._steps = steps
        self._under_way: dict[int, asyncio.Task[list[AttemptRecord]]] = {}
        self._queued: dict[int, int] = {}

    @property
    def rollouts(self) -> int:
        """Number of rollouts queued for steps that were not taken yet."""
        return sum(self._queued.values())

    async def take(self, step: int) -> list[AttemptRecord]:
        """Return a step's attempts; call it once the weights from which the step starts serve."""
        for number in range(step, min(step + self._ahead + 1, self._steps)):
            if number not in self._under_way:
                await self._begin(number)
        records = await self._under_way[step]
        del self._under_way[step], self._queued[step]
        return records

    async def close(self) -> None:
        """Stop waiting for rollouts; queued rollouts stay queued."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, step: int) -> None:
        ids = await self._source.queue(self._source.make(self._plan(step)))
        self._queued[step] = len(ids)
        collecting = self._source.collect(ids)
        self._under_way[step] = asyncio.create_task(collecting, name=f"agl-step-{step}")
