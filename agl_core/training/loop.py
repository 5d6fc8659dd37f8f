"""The training loop: the phases of a run in order, its evaluations, checkpoints and report.

The loop passes records between components. It does not depend on frameworks, algorithms or tensors.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from msgspec.structs import replace

from agl_core.config import RunConfig
from agl_core.config.policies import needs_tuner, trained_agents
from agl_core.training.checkpoint import POLICIES, CheckpointState, config_digest, name_of
from agl_core.training.evaluate import agent_scores, is_better
from agl_core.training.rollouts import TaskSampler, configured_prompts
from agl_core.training.steps import LoopComponents, RunState, Serving, Steps, reconfigures
from agl_core.types import Evaluation, Losses, Policy, Report, StepReport, Task
from agl_core.types.run import PromptReport, RewardTrend, RowCounts, sum_breaks

if TYPE_CHECKING:
    from agl_core.interfaces import Tuner

_log = logging.getLogger(__name__)


class TrainingLoop:
    """The loop over the phases of a run."""

    def __init__(
        self,
        config: RunConfig,
        components: LoopComponents,
        *,
        policies: Sequence[Policy],
        tasks: Sequence[Task],
        val_tasks: Sequence[Task] = (),
    ) -> None:
        """Build the loop.

        Args:
            config: The run's configuration.
            components: The components that the loop uses.
            policies: All policies of the run, in config order.
            tasks: Training tasks; not used if every algorithm is a `Demonstrator`.
            val_tasks: Held-out tasks, evaluated at the start, at the end of each phase and between
                steps.
        """
        self._config = config
        self._components = components
        self._policies = {policy.name: policy for policy in policies}
        self._trained = [policy.name for policy in policies if policy.trainable]
        self._tasks = tasks
        self._sampler = TaskSampler(tasks, seed=config.seed)
        self._val_tasks = val_tasks
        sizes = [phase.steps or 0 for phase in config.phases] or [config.train.steps]
        self._ends = list(accumulate(sizes))
        """Number of steps at the end of each phase."""

    async def prepare(self, start: tuple[Path, CheckpointState] | None) -> RunState:
        """Load the checkpoint to resume from, and cancel the open rollouts of an interrupted run.

        Call this before any runner claims rollouts.
        """
        progress = RunState(
            policies=dict(self._policies),
            prompts=configured_prompts(self._config),
            sha256_before=await self._fingerprints(),
        )
        source, run_id = self._components.source, self._config.name
        await source.abandon(run_id)
        if start is not None:
            await self._restore(progress, *start)
        progress.losses.add("rollouts_abandoned", await source.count_since(source.newest, run_id))
        await self._serving(progress).publish()
        return progress

    async def run(self, progress: RunState) -> Report:
        """Run the phases that are left and return the report; errors of components are raised."""
        started = time.perf_counter()
        tuner = self._tuner(progress) if needs_tuner(self._config) else None
        if progress.checkpoint is None:
            await self._begin(progress, tuner)
        for number in range(progress.phase, len(self._ends)):
            progress.phase = number
            if tuner is not None and number not in self._components.phases:
                await self._tune(progress, tuner)
            else:
                await self._train(progress)
        return await self._report(progress, wall_s=time.perf_counter() - started)

    async def _begin(self, progress: RunState, tuner: Tuner | None) -> None:
        """Learn the prompts of a new run and evaluate it."""
        if tuner is not None:
            progress.prompts = await tuner.prompts()
            await self._serving(progress).publish()
        if self._val_tasks:
            await self._evaluate(progress)
        if tuner is not None:
            await self._checkpoint(progress)  # keeps the learned prompts

    async def _train(self, progress: RunState) -> None:
        """Run an algorithm phase, or the rest of it."""
        phase, end = self._components.phases[progress.phase], self._ends[progress.phase]
        if reconfigures(self._components.phases):
            await self._components.engine.configure(phase.setup)

        async def after(ahead: int) -> None:
            await self._after_step(progress, last=progress.step == end, ahead=ahead)

        steps = Steps(phase, self._serving(progress), sampler=self._sampler, end=end)
        await steps.run(after)

    async def _tune(self, progress: RunState, tuner: Tuner) -> None:
        """Run a prompt phase, or repeat it if it was interrupted."""
        number, optimizer = progress.phase, self._config.phases[progress.phase].optimizer
        self._components.events.stage(f"phase {number}: {optimizer}")
        tuned = await tuner.tune(number, progress.prompts)
        for name, text in tuned.texts.items():
            progress.prompts[name] = replace(progress.prompts[name], template=text)
        if tuned.reason:
            _log.warning("Phase %d (%s) ended early: %s", number, optimizer, tuned.reason)
        progress.losses.merge(await self._components.events.take_losses())
        progress.tuned[number] = tuned
        progress.phase = number + 1
        await self._serving(progress).publish()
        if self._val_tasks:
            await self._evaluate(progress, phase=number)
        await self._checkpoint(progress, phase=number)

    def _serving(self, progress: RunState) -> Serving:
        return Serving(self._config, self._components, progress)

    def _tuner(self, progress: RunState) -> Tuner:
        from agl_core.training._tuning import TuningSetup  # noqa: PLC0415  most runs tune no prompts

        setup = TuningSetup(
            config=self._config,
            plugins=self._components.plugins,
            source=self._components.source,
            adapter=self._components.adapter,
            publish=self._serving(progress).publish_with,
            stage=self._components.events.stage,
            losses=progress.losses,
            train=self._tasks,
            val=self._val_tasks or self._tasks,
            directory=Path(self._config.directory) / self._config.name / "prompts",
        )
        return self._components.plugins.registry("tuners").create("prompts", setup)

    async def _restore(self, progress: RunState, path: Path, state: CheckpointState) -> None:
        for name in self._trained:
            version = state.versions[name]
            await self._components.engine.load(name, str(path / POLICIES / name), version=version)
            await self._serving(progress).route(name, version)
        progress.phase, progress.step = state.phase, state.step
        progress.prompts |= state.prompts
        progress.sha256_before = state.sha256_before
        progress.steps, progress.evaluations = list(state.steps), list(state.evaluations)
        progress.tuned = dict(state.tuned)
        progress.losses.merge(Losses(counts=state.lost))
        progress.losses.add("rollouts_abandoned", state.ahead)
        progress.calls = state.calls
        progress.checkpoint = path
        self._components.source.newest = state.newest_rollout
        self._restore_best(progress)

    def _restore_best(self, progress: RunState) -> None:
        """Set the best evaluated checkpoint among those that still exist."""
        paths = {path.name: path for path in self._components.checkpoints.all()}
        for evaluation in progress.evaluations:
            if path := paths.get(name_of(evaluation.step, evaluation.phase)):
                self._keep_if_best(progress, evaluation, path)

    async def _fingerprints(self) -> dict[str, str]:
        """Return the digests of the weights by policy; none if the run does not train."""
        trains, engine = bool(self._components.phases), self._components.engine
        own = [name for name, policy in self._policies.items() if trains and not policy.base_url]
        return {name: await engine.fingerprint(name) for name in own}

    async def _after_step(self, progress: RunState, *, last: bool, ahead: int) -> None:
        """Write a checkpoint and evaluate at the configured steps and after a phase's last one."""
        train, step = self._config.train, progress.step
        evaluate = bool(self._val_tasks) and (
            last or (train.eval_every > 0 and step % train.eval_every == 0)
        )
        if evaluate:
            await self._evaluate(progress)
        if last or evaluate or step % train.checkpoint_every == 0:
            await self._checkpoint(progress, ahead=ahead)

    async def _evaluate(self, progress: RunState, *, phase: int | None = None) -> None:
        self._components.events.stage(f"evaluating on {len(self._val_tasks)} tasks")
        evaluation = await self._components.evaluator.evaluate(
            self._val_tasks, step=progress.step, resources_version=progress.resources.version
        )
        evaluation = replace(evaluation, phase=phase, resources_version=progress.resources.version)
        progress.losses.merge(await self._components.events.take_losses())
        progress.evaluations.append(evaluation)
        self._components.events.evaluation(evaluation)

    async def _checkpoint(
        self, progress: RunState, *, phase: int | None = None, ahead: int = 0
    ) -> None:
        state = CheckpointState(
            step=progress.step,
            phase=progress.phase,
            config_digest=config_digest(self._config, progress.phase),
            versions={name: policy.version for name, policy in progress.policies.items()},
            prompts=progress.prompts,
            sha256_before=progress.sha256_before,
            steps=progress.steps,
            evaluations=progress.evaluations,
            tuned=progress.tuned,
            lost=progress.losses.counts,
            calls=progress.calls,
            newest_rollout=self._components.source.newest,
            ahead=ahead,
        )
        progress.checkpoint = await self._components.checkpoints.save(
            state,
            engine=self._components.engine,
            policies=self._trained,
            best=progress.best,
            phase=phase,
        )
        evaluation = progress.evaluations[-1] if progress.evaluations else None
        if evaluation is not None and (evaluation.step, evaluation.phase) == (progress.step, phase):
            self._keep_if_best(progress, evaluation, progress.checkpoint)

    def _keep_if_best(self, progress: RunState, evaluation: Evaluation, path: Path) -> None:
        best = progress.best_score.score if progress.best_score is not None else None
        if is_better(evaluation.score, best):
            progress.best, progress.best_score = path, evaluation

    async def _report(self, progress: RunState, *, wall_s: float) -> Report:
        after = await self._fingerprints()
        agents = trained_agents(self._config, [*progress.policies.values()])
        best = progress.best or progress.checkpoint
        progress.losses.merge(await self._components.events.take_losses())
        seen = {channel for step in progress.steps for channel in step.channels}
        for channel in sorted(set(self._config.channel_weights) - seen if progress.steps else ()):
            progress.losses.add(f"unused_weight_of_channel_{channel}")
        tuned = progress.tuned.values()
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
                    "sha256_before": progress.sha256_before.get(name, ""),
                    "sha256_after": after.get(name, ""),
                    "path": self._path_of(policy, progress.checkpoint),
                }
                for name, policy in progress.policies.items()
            },
            agents={agent: agent_scores(progress.evaluations, agent) for agent in agents},
            prompts=prompt_reports(progress),
            rollouts=sum(part.rollouts for part in (*progress.steps, *tuned)),
            editor_calls=sum(sum(phase.calls.values()) for phase in tuned),
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


def prompt_reports(progress: RunState) -> dict[str, PromptReport]:
    """Return the prompts with the first and the best score of the phases that tuned them."""
    found: dict[str, PromptReport] = {}
    for name, prompt in progress.prompts.items():
        phases = [each for _, each in sorted(progress.tuned.items()) if name in each.texts]
        scores = [each.after for each in phases if each.after is not None]
        found[name] = PromptReport(
            text=prompt.template,
            agents=list(prompt.agents),
            captured=prompt.known is not None,
            tool=prompt.tool,
            before=next((each.before for each in phases), None),
            after=max(scores, key=lambda score: score.mean, default=None),
        )
    return found


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
