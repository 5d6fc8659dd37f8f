"""Rollouts of later steps that are begun while earlier ones are trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agl_core.interfaces import AttemptRecord
from agl_core.training.rollouts import RolloutPlan, RolloutSource

Records = list[AttemptRecord]


class Prefetcher:
    """Keeps the rollouts of up to `ahead` steps under way beside those of the step that is taken.

    A step's rollouts are queued no sooner than the weights of the step `ahead` before it serve.
    Since every step makes at most one version of a policy, no call of theirs is more than `ahead`
    versions older than the weights that are trained on it.
    """

    def __init__(
        self,
        source: RolloutSource,
        plan: Callable[[int], RolloutPlan],
        *,
        ahead: int,
        steps: int,
    ) -> None:
        """Set up; nothing is queued yet.

        Args:
            source: Queues and collects.
            plan: What to run for a step, as resources are when it is asked.
            ahead: Steps beyond the one that is taken.
            steps: Steps of the run: none is begun beyond them.
        """
        self._source = source
        self._plan = plan
        self._ahead = ahead
        self._steps = steps
        self._under_way: dict[int, asyncio.Task[Records]] = {}
        self._queued: dict[int, int] = {}

    @property
    def rollouts(self) -> int:
        """Queued for steps that have not been taken."""
        return sum(self._queued.values())

    async def take(self, step: int) -> Records:
        """What became of a step's rollouts. The weights that it trains serve by now."""
        for number in range(step, min(step + self._ahead + 1, self._steps)):
            if number not in self._under_way:
                await self._begin(number)
        records = await self._under_way[step]
        del self._under_way[step], self._queued[step]
        return records

    async def close(self) -> None:
        """Wait for nothing more; what is queued stays so."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, step: int) -> None:
        ids = await self._source.queue(self._plan(step))
        self._queued[step] = len(ids)
        collecting = self._source.collect(ids)
        self._under_way[step] = asyncio.create_task(collecting, name=f"agl-step-{step}")
