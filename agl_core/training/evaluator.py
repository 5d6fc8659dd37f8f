"""Run the agents on validation tasks and summarise how they did."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agl_core.config import RunConfig
from agl_core.interfaces import Adapter
from agl_core.training.evaluate import outcomes, summarize
from agl_core.training.rollouts import RolloutPlan, RolloutSource
from agl_core.types import Evaluation, Mode, Task


class Evaluator:
    """Evaluates with whatever weights and prompts serve at the moment."""

    def __init__(self, source: RolloutSource, adapter: Adapter, config: RunConfig) -> None:
        self._source = source
        self._adapter = adapter
        self._config = config

    async def evaluate(
        self, tasks: Sequence[Task], *, step: int, resources_version: int, mode: Mode = "val"
    ) -> Evaluation:
        """Every task `samples` times. Seeds do not depend on the step, so evaluations compare.

        Raises:
            ConfigError: there are no tasks.
        """
        started = time.perf_counter()
        plan = RolloutPlan(
            tasks=tasks,
            samples=self._config.eval.samples,
            mode=mode,
            step=step,
            resources_version=resources_version,
        )
        records = await self._source.run(plan)
        results = outcomes(records, self._adapter)
        await self._source.consume(records)
        wall_s = time.perf_counter() - started
        return summarize(
            results,
            step=step,
            config=self._config.eval,
            wall_s=wall_s,
            failure_score=self._config.rollout.penalty,
        )
