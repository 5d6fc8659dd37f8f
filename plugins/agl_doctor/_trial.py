"""A run of a few tasks with the components of a training, without training."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from agl_core.app import App, Blueprint, Components, open_components, run_alongside
from agl_core.config import RunConfig
from agl_core.interfaces import Adapter, Algorithm, AttemptRecord, Backend, Capabilities
from agl_core.plugins import PluginManager
from agl_core.runner import Stall
from agl_core.training import RolloutPlan, TaskSampler, make_resources
from agl_core.types import Losses, Policy, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """The records of a trial's attempts."""

    records: Sequence[AttemptRecord]
    losses: Losses
    """Losses of the components, by cause."""
    stalls: Sequence[Stall]
    """Blockages of the event loop of async agents and rewards."""


class Trial:
    """Open components with the tasks of a trial."""

    def __init__(
        self, components: Components, plan: Blueprint, *, tasks: Sequence[Task], samples: int
    ) -> None:
        """Set the components, which must be opened for training.

        Args:
            components: Open as long as the trial is used.
            plan: The blueprint of the components.
            tasks: The tasks to run.
            samples: Attempts per task.
        """
        self._components = components
        self.config: RunConfig = plan.config
        self.plugins: PluginManager = plan.plugins
        self.directory: Path = plan.directory
        self.tasks = tasks
        self.samples = samples
        self.policies: Sequence[Policy] = components.policies
        phases = components.phases
        self.algorithm: Algorithm | None = phases[min(phases)].algorithm if phases else None
        """Of the first phase that trains weights; None if the run only tunes prompts."""
        self.adapter: Adapter = components.adapter

    def backend(self, policy: str) -> Backend:
        """Return the backend of a policy that the run's engine serves."""
        return self._components.engine.backend(policy)

    async def probe(self, policy: str) -> Capabilities:
        """Request a few tokens from a policy's backend and report the token data received.

        Raises:
            EngineError: the backend does not answer.
            MissingTokensError: its answers have no token ids.
        """
        return await self._components.gateway.probe(policy)

    async def run(self) -> Tried:
        """Run every task `samples` times in train mode, so that tokens are recorded."""
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


@asynccontextmanager
async def open_trial(
    app: App, *, folder: str, tasks: int = 2, samples: int | None = None
) -> AsyncGenerator[Trial]:
    """Open the components to run the first tasks of a training, without training.

    Args:
        app: The run.
        folder: Folder in the run's directory for the records.
        tasks: Number of tasks.
        samples: Attempts per task, at least two; None: the group's size, at most four.

    Raises:
        ConfigError: a name, path or option is wrong.
    """
    known, plan = app.train_tasks(), app.apart(folder)
    chosen = TaskSampler(known, seed=plan.config.seed).step(0, size=min(tasks, len(known)))
    each = min(plan.config.algorithm.group_size, 4) if samples is None else samples
    async with open_components(plan, training=True, probe=False) as components:
        yield Trial(components, plan, tasks=chosen, samples=max(each, 2))
