"""Prefetching: rollouts of later steps start while earlier steps are trained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agl_core.interfaces import AttemptRecord
from agl_core.training.rollouts import RolloutPlan, RolloutSource

Records = list[AttemptRecord]


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
        self._under_way: dict[int, asyncio.Task[Records]] = {}
        self._queued: dict[int, int] = {}

    @property
    def rollouts(self) -> int:
        """Number of rollouts queued for steps that were not taken yet."""
        return sum(self._queued.values())

    async def take(self, step: int) -> Records:
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
        ids = await self._source.queue(self._plan(step))
        self._queued[step] = len(ids)
        collecting = self._source.collect(ids)
        self._under_way[step] = asyncio.create_task(collecting, name=f"agl-step-{step}")
