"""A trial: the components of a run, opened to run the agents on a few tasks without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agl_core.app.components import Blueprint, Components, run_alongside
from agl_core.config import RunConfig
from agl_core.errors import ConfigError
from agl_core.interfaces import Adapter, Algorithm, AttemptRecord, Backend, Capabilities
from agl_core.plugins import PluginManager
from agl_core.tracing.agent_loop import Stall
from agl_core.training.resources import make_resources
from agl_core.training.rollouts import RolloutPlan
from agl_core.types import Losses, Policy, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What the attempts of a trial left."""

    records: Sequence[AttemptRecord]
    losses: Losses
    """What the components lost, by cause."""
    stalls: Sequence[Stall]
    """What blocked the event loop of async agents and rewards."""


class Trial:
    """Open components, the tasks to try with them, and what they are made from."""

    def __init__(
        self, components: Components, plan: Blueprint, *, tasks: Sequence[Task], samples: int
    ) -> None:
        """Take components that were opened to train.

        Args:
            components: Open as long as the trial is used.
            plan: What they were built from.
            tasks: What is tried.
            samples: Attempts per task.

        Raises:
            ConfigError: the components were opened to evaluate.
        """
        if components.algorithm is None:
            raise ConfigError("These components were opened to evaluate, not to train")
        self._components = components
        self.config: RunConfig = plan.config
        self.plugins: PluginManager = plan.plugins
        self.directory: Path = plan.directory
        self.tasks = tasks
        self.samples = samples
        self.policies: Sequence[Policy] = components.policies
        self.algorithm: Algorithm = components.algorithm
        self.adapter: Adapter = components.adapter

    def backend(self, policy: str) -> Backend:
        """What answers the calls of a policy."""
        return self._components.engine.backend(policy)

    async def probe(self, policy: str) -> Capabilities:
        """What the backend of a policy gives of tokens, found out by asking it.

        Raises:
            EngineError: it gives no answer.
            MissingTokensError: its answers hold no token ids.
        """
        return await self._components.gateway.probe(policy)

    async def run(self) -> Tried:
        """Run every task `samples` times in train mode, so that tokens are captured."""
        source = self._components.source
        await source.abandon(self.config.name)
        made = make_resources(self.config, self._components.gateway, self.policies, step=0)
        resources = await source.publish(made)
        work = source.run(
            RolloutPlan(
                tasks=self.tasks,
                samples=self.samples,
                mode="train",
                step=0,
                resources_version=resources.version,
            )
        )
        runner = self._components.runner
        records = await run_alongside(runner, work)
        return Tried(
            records=records,
            losses=await self._components.events.take_losses(),
            stalls=runner.stalls if runner is not None else (),
        )
