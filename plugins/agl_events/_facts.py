"""The data of each channel's events, as records of which the documentation has the schema.

Fields that are `Content` are left out unless ``events.content`` is set: they may hold personal data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from agl_core.config import RunConfig, without_secrets
from agl_core.interfaces import AttemptRecord, TrackedRun
from agl_core.types import (
    LLM,
    Attempt,
    Batch,
    Estimate,
    Evaluation,
    PromptTemplate,
    Report,
    Resources,
    Rollout,
    Span,
    StepReport,
    Trajectory,
    Update,
)

Content = Any | UnsetType
"""What people or models wrote; left out unless ``events.content`` is set."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The data of an event."""


class ConfigResolved(Facts, frozen=True, kw_only=True):
    """The configuration is final; nothing has started."""

    run: str
    agents: list[str]
    """Agents to train: names or globs."""
    algorithm: str
    engine: str | None
    model: str | None
    steps: int
    phases: int
    config: Content = UNSET
    """The configuration without secrets."""

    @classmethod
    def of(cls, config: RunConfig, *, content: bool) -> ConfigResolved:
        return cls(
            run=config.name,
            agents=config.agents,
            algorithm=config.algorithm.name,
            engine=config.engine.name,
            model=config.model,
            steps=config.train.steps,
            phases=len(config.phases),
            config=without_secrets(config) if content else UNSET,
        )


class RunStarted(Facts, frozen=True, kw_only=True):
    """Store, gateway and engine are up; no rollout has been queued."""

    run: str
    directory: str
    resumed_at: int | None
    """Step of the checkpoint from which the run is resumed; null for a new run."""

    @classmethod
    def of(cls, run: TrackedRun) -> RunStarted:
        return cls(run=run.name, directory=str(run.directory), resumed_at=run.resumed_at)


class RolloutStarted(Facts, frozen=True, kw_only=True):
    """A worker has claimed the rollout; the agent has not been called."""

    rollout: str
    attempt: str
    fence: int
    """1 for the first attempt of the rollout."""
    worker: str
    task: str
    """Id of the task."""
    group: str
    mode: str
    step: int
    input: Content = UNSET
    """The task's input."""

    @classmethod
    def of(cls, rollout: Rollout, attempt: Attempt, *, content: bool) -> RolloutStarted:
        return cls(
            rollout=rollout.id,
            attempt=attempt.id,
            fence=attempt.fence,
            worker=attempt.worker,
            task=rollout.task.id,
            group=rollout.group_id,
            mode=rollout.mode,
            step=rollout.step,
            input=rollout.task.input if content else UNSET,
        )


class RolloutFinished(Facts, frozen=True, kw_only=True):
    """The attempt is sealed."""

    rollout: str
    attempt: str
    fence: int
    task: str
    group: str
    mode: str
    step: int
    status: str
    failure: str | None
    """Kind of the failure, such as `deadline`."""
    seconds: float | None
    spans: int
    """Spans of tracing, without the gateway's."""
    rewards: dict[str, float]
    """Channel to the sum of the rewards that the spans hold."""
    output: Content = UNSET
    """What the agent returned."""
    error: Content = UNSET
    """Text of the failure; absent without one."""

    @classmethod
    def of(
        cls, rollout: Rollout, attempt: Attempt, spans: Sequence[Span], *, content: bool
    ) -> RolloutFinished:
        failure = attempt.failure
        rewards: dict[str, float] = {}
        for span in spans:
            if span.reward is not None:
                channel = span.reward.channel
                rewards[channel] = rewards.get(channel, 0.0) + span.reward.value
        ended = attempt.ended_at
        return cls(
            rollout=rollout.id,
            attempt=attempt.id,
            fence=attempt.fence,
            task=rollout.task.id,
            group=rollout.group_id,
            mode=rollout.mode,
            step=rollout.step,
            status=attempt.status.value,
            failure=failure.kind.value if failure else None,
            seconds=None if ended is None else ended - attempt.started_at,
            spans=len(spans),
            rewards=rewards,
            output=attempt.output if content else UNSET,
            error=failure.message if content and failure else UNSET,
        )


class TrajectoriesBuilt(Facts, frozen=True, kw_only=True):
    """One attempt has been joined."""

    rollout: str
    attempt: str
    task: str
    step: int
    trajectories: dict[str, int]
    """Agent to number of trajectories."""
    calls: int
    tokens: int
    """Tokens of all trajectories."""

    @classmethod
    def of(cls, record: AttemptRecord, trajectories: Sequence[Trajectory]) -> TrajectoriesBuilt:
        agents: dict[str, int] = {}
        calls = tokens = 0
        for path in trajectories:
            agents[path.agent] = agents.get(path.agent, 0) + 1
            calls += len(path.calls)
            tokens += len(path.token_ids)
        rollout = record.rollout
        return cls(
            rollout=rollout.id,
            attempt=record.attempt.id,
            task=rollout.task.id,
            step=rollout.step,
            trajectories=agents,
            calls=calls,
            tokens=tokens,
        )


class BatchBuilt(Facts, frozen=True, kw_only=True):
    """The batch of a step is ready; it has not been trained on."""

    policy: str
    step: int
    calls: dict[str, int]
    """Agent to number of sampled sequences."""
    tokens: int
    """Tokens that the model reads, each once."""
    terms: int
    """Sampled tokens that are trained on."""
    stats: dict[str, float]

    @classmethod
    def of(cls, batch: Batch, step: int) -> BatchBuilt:
        return cls(
            policy=batch.policy,
            step=step,
            calls=Counter(batch.agents),
            tokens=len(batch.tokens),
            terms=len(batch.targets),
            stats=dict(batch.stats),
        )


class UpdateApplied(Facts, frozen=True, kw_only=True):
    """New weights serve."""

    policy: str
    step: int
    version: int
    metrics: dict[str, float]
    rows: dict[str, int]
    """Agent to number of sequences that were trained on."""
    lost: dict[str, int]
    """Cause to number of sequences that were not."""

    @classmethod
    def of(cls, update: Update, step: int) -> UpdateApplied:
        return cls(
            policy=update.policy,
            step=step,
            version=update.version,
            metrics=dict(update.metrics),
            rows=dict(update.rows),
            lost=dict(update.lost),
        )


class ResourcesPublished(Facts, frozen=True, kw_only=True):
    """The store holds a new version of what agents are served with."""

    version: int
    step: int
    policies: dict[str, int]
    """Policy to the version of its weights."""
    prompts: list[str]
    """Names of the prompts."""
    texts: Content = UNSET
    """Prompt to its text."""

    @classmethod
    def of(cls, resources: Resources, *, content: bool) -> ResourcesPublished:
        items = resources.items
        texts = {
            key: each.template for key, each in items.items() if isinstance(each, PromptTemplate)
        }
        return cls(
            version=resources.version,
            step=resources.step,
            policies={k: each.version for k, each in items.items() if isinstance(each, LLM)},
            prompts=list(texts),
            texts=texts if content else UNSET,
        )


class StepFinished(Facts, frozen=True, kw_only=True):
    """The step is over, and its report is final."""

    step: int
    steps: int
    reward: float | None
    """Mean weighted return; null in a step without rollouts."""
    channels: dict[str, float]
    rollouts: int
    calls: int
    tokens: int
    failures: dict[str, int]
    lost: dict[str, int]
    metrics: dict[str, float]
    seconds: float

    @classmethod
    def of(cls, report: StepReport) -> StepFinished:
        return cls(
            step=report.step,
            steps=report.steps,
            reward=report.reward,
            channels=dict(report.channels),
            rollouts=report.rollouts,
            calls=report.calls,
            tokens=report.tokens,
            failures=dict(report.failures),
            lost=dict(report.lost),
            metrics=dict(report.metrics),
            seconds=report.wall_s,
        )


class ScoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    tasks: int

    @classmethod
    def of(cls, estimate: Estimate) -> ScoreFacts:
        return cls(mean=estimate.mean, low=estimate.low, high=estimate.high, tasks=estimate.n)


class EvaluationFinished(Facts, frozen=True, kw_only=True):
    """The agents were scored on the validation tasks."""

    step: int
    """Number of the step before it."""
    phase: int | None
    """Number of the prompt phase that it follows, if any."""
    score: ScoreFacts
    channels: dict[str, ScoreFacts]
    failed: dict[str, int]
    """Failure kind to number of attempts."""
    lost: dict[str, int]
    seconds: float

    @classmethod
    def of(cls, evaluation: Evaluation) -> EvaluationFinished:
        return cls(
            step=evaluation.step,
            phase=evaluation.phase,
            score=ScoreFacts.of(evaluation.score),
            channels={name: ScoreFacts.of(each) for name, each in evaluation.channels.items()},
            failed=dict(evaluation.failed),
            lost=dict(evaluation.lost),
            seconds=evaluation.wall_s,
        )


class RunFinished(Facts, frozen=True, kw_only=True):
    """The run has ended well."""

    run: str
    directory: str
    steps: int
    evaluations: int
    calls: int
    seconds: float
    reward_first: float | None
    reward_last: float | None
    score: ScoreFacts | None
    """Of the last evaluation."""
    best: str | None
    """Directory of the best checkpoint."""
    lost: dict[str, int]

    @classmethod
    def of(cls, report: Report) -> RunFinished:
        trend, scores = report.reward, report.evaluations
        return cls(
            run=report.run_id,
            directory=report.directory,
            steps=len(report.steps),
            evaluations=len(scores),
            calls=report.calls,
            seconds=report.wall_s,
            reward_first=trend.first if trend else None,
            reward_last=trend.last if trend else None,
            score=ScoreFacts.of(scores[-1].score) if scores else None,
            best=report.best,
            lost=dict(report.lost),
        )


class RunFailed(Facts, frozen=True, kw_only=True):
    """An error or an interruption ended the run."""

    run: str
    error: str
    """Class of the error, such as `ConfigError`."""
    text: Content = UNSET
    """Text of the error."""

    @classmethod
    def of(cls, run: str, error: BaseException, *, content: bool) -> RunFailed:
        return cls(run=run, error=type(error).__name__, text=str(error) if content else UNSET)


SCHEMAS: Final[Mapping[str, type[Facts]]] = {
    "config:resolved": ConfigResolved,
    "run:started": RunStarted,
    "rollout:started": RolloutStarted,
    "rollout:finished": RolloutFinished,
    "trajectories:built": TrajectoriesBuilt,
    "batch:built": BatchBuilt,
    "update:applied": UpdateApplied,
    "resources:published": ResourcesPublished,
    "step:finished": StepFinished,
    "evaluation:finished": EvaluationFinished,
    "run:finished": RunFinished,
    "run:failed": RunFailed,
}
"""Channel to the type of its events' data."""
CHANNEL_OF: Final[Mapping[type[Facts], str]] = {facts: name for name, facts in SCHEMAS.items()}


def schema_of(channel: str) -> dict[str, Any]:
    """Return the JSON schema of an event's `data`."""
    return msgspec.json.schema(SCHEMAS[channel])
