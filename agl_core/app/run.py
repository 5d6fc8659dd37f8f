"""One run: check the configuration, open the components, train or evaluate, close; its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from agl_core import adapters
from agl_core._builtin import load_plugins
from agl_core.app._components import Blueprint, Components, open_components, run_alongside
from agl_core.app.blocking import run_blocking
from agl_core.app.names import check_phases, check_sections
from agl_core.app.parts import (
    Inputs,
    all_of,
    check_apart,
    engine_class,
    engine_name,
    make_agent,
    make_scorer,
    make_tasks,
    make_tracking,
    runs_agents,
    with_store,
    with_store_apart,
)
from agl_core.config import RunConfig
from agl_core.config.loader import RESOLVED, without_secrets
from agl_core.errors import ConfigError, TrainingError
from agl_core.files import write_private
from agl_core.interfaces import CreditedCall, Engine, Observer, RunObserver, TrackedRun
from agl_core.plugins import PluginManager
from agl_core.text import json_bytes
from agl_core.training.checkpoint import (
    POLICIES,
    STATE,
    Checkpoints,
    CheckpointState,
    config_digest,
    verify,
)
from agl_core.training.evaluate import Evaluator
from agl_core.training.groups import GroupBuilder
from agl_core.training.loop import TrainingLoop
from agl_core.training.rollouts import configured_prompts, make_resources
from agl_core.training.steps import LoopComponents
from agl_core.types import Batch, Evaluation, Losses, PromptTemplate, Task
from agl_core.types import Report as RunReport


class Report(RunReport, kw_only=True):
    """The outcome of a run: weights, scores and losses."""

    @classmethod
    def of(cls, report: RunReport) -> Report:
        """Convert a run's report to this class."""
        return cls(**{name: getattr(report, name) for name in report.__struct_fields__})

    def export(self, directory: str) -> str:
        """Write the best checkpoint's weights and tokenizer to `directory`, ready to serve.

        Raises:
            TrainingError: the run has no checkpoint, or a file of the checkpoint is damaged.
        """
        return export_weights(self, directory)

    def plot(self) -> Any:
        """Return a picture of rewards and scores per step, which notebooks show.

        ``save(path)`` writes the picture of the display ``progress``, as SVG.

        Raises:
            ConfigError: no loaded display draws reports.
        """
        for display in all_of(load_plugins().registry("displays")).values():
            if hasattr(display, "plot"):
                return display.plot(self)
        raise ConfigError("No display of the loaded plugins draws reports: see `agl plugins`")


def export_weights(target: RunReport | str | Path, directory: str | Path) -> str:
    """Write the weights and tokenizer of each policy of a checkpoint, ready to serve.

    If a checkpoint has only a low-rank adapter, the engine that wrote it merges it. The run's
    configuration is copied to the directory, so that ``agl.evaluate`` accepts it as a checkpoint.

    Args:
        target: A report, for its best checkpoint, or a checkpoint's directory.
        directory: Directory with a folder per policy; created if missing.

    Raises:
        TrainingError: the run has no checkpoint, or a file of the checkpoint is damaged.
        ConfigError: the base model of an adapter is missing.
        MissingExtraError: the engine that merges needs a library that is not installed.
    """
    if isinstance(target, RunReport):
        if target.best is None:
            raise TrainingError(
                f"Run {target.run_id!r} has no checkpoint to export: it took no step"
            )
        target = target.best
    run_blocking(_export(Path(target), Path(directory)))
    config = Path(target).resolve().parents[1] / RESOLVED
    if config.is_file():
        write_private(Path(directory) / RESOLVED, config.read_bytes())
    return str(directory)


async def _export(checkpoint: Path, directory: Path) -> None:
    state = await verify(checkpoint)
    plugins = load_plugins()
    # The engine of a plugin file is not loaded; its directory is copied.
    known = state.engine in plugins.registry("engines")
    engine = engine_class(state.engine, plugins) if known else Engine
    policies = sorted(path for path in (checkpoint / POLICIES).glob("*") if path.is_dir())
    if not policies:
        raise ConfigError(
            f"Checkpoint {checkpoint} holds no weights; agl export RUN --prompts DIR writes prompts"
        )
    for policy in policies:
        await engine.export(str(policy), str(directory / policy.name))


REPORT = "report.json"
EVALUATIONS = "eval"
"""Folder in a run's directory for the records of evaluations."""


class App:
    """One run of one configuration."""

    def __init__(
        self,
        config: RunConfig,
        inputs: Inputs | None = None,
        *,
        observers: Sequence[Observer] = (),
        plugins: PluginManager | None = None,
    ) -> None:
        """Check the configuration before any component starts.

        Args:
            config: The run's configuration.
            inputs: Objects that replace references in the configuration.
            observers: Called at every step and evaluation.
            plugins: Loaded plugins; None: load built-in, installed and configured plugins.

        Raises:
            ConfigError: a name, key or value is wrong.
        """
        self._plugins = plugins or load_plugins(config.plugins)
        self._config = config = with_store(config, self._plugins)
        self._inputs = inputs or Inputs()
        self._observers = observers
        self._plan = Blueprint(
            config=config,
            plugins=self._plugins,
            directory=Path(config.directory) / config.name,
            agent=None,
            scorer=None,
            observers=observers,
        )
        check_phases(config, self._plugins)
        check_sections(config, self._plugins)
        self._runs_agents = runs_agents(config, self._plugins)
        evaluates = self._inputs.val_tasks is not None or config.tasks.val is not None
        if not config.rollout.local:
            check_apart(config, self._plugins)
        elif evaluates or self._runs_agents:
            self._plan = self._with_agent(self._plan)
        self._checkpoints = Checkpoints(
            self._plan.directory / "checkpoints",
            keep=config.train.keep_checkpoints,
            engine=engine_name(config, self._plugins),
        )
        self._plugins.observe("agl_config_resolved", config=config)

    async def train(self) -> Report:
        """Train to the configured step; the report is stored in the run's directory."""
        config = self._config
        tasks = self.train_tasks() if self._runs_agents else []
        val_tasks = self._val_tasks()
        known = await self._verified(None)  # raises before any component starts
        plan = replace(self._plan, tracking=self._tracking())
        async with open_components(plan, training=True) as components:
            start = await self._verified(known)  # the previous trainer may have written more
            for observer in self._observers:
                observer.started(config)
            self._plugins.observe(
                "agl_run_started", run_id=config.name, store=components.store, config=config
            )
            loop = self._loop(components, tasks, val_tasks)
            progress = await loop.prepare(start)
            report = await run_alongside(components.runner, loop.run(progress), components.lead)
            for tracking in plan.tracking:
                await tracking.finish(report)
            lost = Losses(counts=dict(report.lost))
            lost.merge(await components.events.take_losses())
            report = Report.of(msgspec.structs.replace(report, lost=lost.counts))
        write_private(self._plan.directory / REPORT, json_bytes(report, indent=2))
        self._plugins.observe("agl_run_finished", report=report)
        for observer in self._observers:
            observer.finished(report)
        return report

    async def evaluate(
        self,
        *,
        checkpoint: str | Path | None = None,
        prompts: Mapping[str, PromptTemplate] | None = None,
    ) -> Evaluation:
        """Score the agents on the validation tasks, or without them on the training tasks.

        Records are written to ``<run>/eval``, as a training of the same run may be active.

        Args:
            checkpoint: Checkpoint or export with the weights to load; None: the weights of the
                configured models.
            prompts: Prompts by name that replace those of the checkpoint or configuration.
        """
        tasks = self._val_tasks() or self.train_tasks()
        weights = Path(checkpoint) if checkpoint is not None else None
        plan = self.apart(EVALUATIONS)
        if weights is not None and weights.is_dir() and not _is_checkpoint(weights):
            plan, weights = replace(plan, exported=weights.resolve()), None
        async with open_components(plan, training=False) as components:
            await components.source.abandon(self._config.name)
            step, served = await _load(components, self._config, weights)
            evaluator = Evaluator(components.source, components.adapter, self._config)
            served |= prompts or {}
            made = make_resources(
                self._config, components.gateway, components.policies, step=step, prompts=served
            )
            resources = await components.source.publish(made)
            components.events.stage(f"evaluating on {len(tasks)} tasks")
            work = evaluator.evaluate(
                tasks, step=step, resources_version=resources.version, mode="test"
            )
            evaluation = await run_alongside(components.runner, work)
            lost = Losses(counts=dict(evaluation.lost))
            lost.merge(await components.events.take_losses())
            evaluation = msgspec.structs.replace(evaluation, lost=lost.counts)
        for observer in self._observers:
            observer.evaluation(evaluation)
        return evaluation

    def apart(self, folder: str) -> Blueprint:
        """Return a plan with its own store and runner in this process, apart from the run's.

        Args:
            folder: Folder in the run's directory for the records.
        """
        config = with_store_apart(self._config, self._plugins)
        local = config.rollout.model_copy(update={"local": True})
        gateway = config.gateway
        if gateway.url is not None:  # its certificate is for the engine's address
            none = {"url": None, "tls_cert": None, "tls_key": None}
            gateway = gateway.model_copy(update=none)
        apart = config.model_copy(update={"rollout": local, "gateway": gateway})
        directory = self._plan.directory / folder
        plan = replace(self._plan, config=apart, directory=directory)
        return plan if plan.agent is not None else self._with_agent(plan)

    def _with_agent(self, plan: Blueprint) -> Blueprint:
        return replace(
            plan,
            agent=make_agent(self._config, self._inputs.agent),
            scorer=make_scorer(self._config, self._plugins, self._inputs.reward),
        )

    def _starting_point(self) -> tuple[Path, CheckpointState] | None:
        config = self._config
        return self._checkpoints.starting_point(
            resume=config.train.resume, digest=partial(config_digest, config)
        )

    async def _verified(
        self, known: tuple[Path, CheckpointState] | None
    ) -> tuple[Path, CheckpointState] | None:
        """Return the starting point; check its files unless it equals `known`."""
        start = self._starting_point()
        if start is not None and start != known:
            await verify(start[0])
        return start

    def _tracking(self) -> list[RunObserver]:
        def describe() -> TrackedRun:
            start = self._starting_point()
            return TrackedRun(
                name=self._config.name,
                directory=self._plan.directory,
                config=without_secrets(self._config),
                resumed_at=start[1].step if start is not None else None,
            )

        return make_tracking(self._config, self._plugins, describe)

    def train_tasks(self) -> list[Task]:
        return make_tasks(self._inputs.tasks, self._config.tasks, "train", self._plugins)

    def _val_tasks(self) -> list[Task]:
        given, configured = self._inputs.val_tasks, self._config.tasks
        if given is None and configured.val is None:
            return []
        return make_tasks(given, configured, "val", self._plugins)

    def _loop(
        self, components: Components, tasks: Sequence[Task], val_tasks: Sequence[Task]
    ) -> TrainingLoop:
        config = self._config
        metrics = self._plugins.registry("metrics")
        return TrainingLoop(
            config,
            LoopComponents(
                source=components.source,
                groups=GroupBuilder(
                    components.adapter,
                    rollout=config.rollout,
                    max_error_share=config.capture.max_error_share,
                ),
                phases=components.phases,
                forest=_forest,
                adapter=components.adapter,
                gateway=components.gateway,
                engine=components.engine,
                evaluator=Evaluator(components.source, components.adapter, config),
                checkpoints=self._checkpoints,
                events=components.events,
                plugins=self._plugins,
                metrics=[metrics.resolve(name) for name in metrics.names()],
            ),
            policies=components.policies,
            tasks=tasks,
            val_tasks=val_tasks,
        )


def run_config_of(checkpoint: Path) -> Path:
    """Return the resolved configuration of the run of a checkpoint or export.

    Raises:
        ConfigError: the directory has no configuration and is not in a run's directory.
    """
    inside = checkpoint / RESOLVED
    file = inside if inside.is_file() else checkpoint.resolve().parents[1] / RESOLVED
    if not file.is_file():
        raise ConfigError(
            f"Checkpoint {checkpoint} lies in no run's directory (there is no {file}): name the "
            f"configuration beside it"
        )
    return file


def _is_checkpoint(directory: Path) -> bool:
    return (directory / STATE).is_file() or (directory / POLICIES).is_dir()


async def _load(
    components: Components, config: RunConfig, checkpoint: Path | None
) -> tuple[int, dict[str, PromptTemplate]]:
    """Serve a checkpoint's weights; return its step, and the configured prompts with its own.

    Raises:
        ConfigError: it has neither weights of this run's policies nor prompts.
    """
    if checkpoint is None:
        return 0, configured_prompts(config)
    state = await verify(checkpoint)
    loaded = 0
    for policy in components.policies:
        weights = checkpoint / POLICIES / policy.name
        if weights.is_dir():
            version = state.versions[policy.name]
            await components.engine.load(policy.name, str(weights), version=version)
            served = msgspec.structs.replace(policy, version=version)
            await components.gateway.route(served, components.engine.backend(policy.name))
            loaded += 1
    if not loaded and not state.prompts:
        raise ConfigError(
            f"Checkpoint {checkpoint} holds no weights for the policies of this configuration "
            f"({[policy.name for policy in components.policies]})"
        )
    tuned = {name: prompt for name, prompt in state.prompts.items() if prompt.agents}
    return state.step, {**configured_prompts(config), **tuned}


def _forest(calls: Sequence[CreditedCall], *, policy: str, step: int) -> Batch:
    """Build a batch; only the first step's end imports the module."""
    return adapters.forest(calls, policy=policy, step=step)
