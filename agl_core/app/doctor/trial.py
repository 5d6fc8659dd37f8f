"""Run a few tasks as the first step of training would, and adapt what was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from agl_core.adapters import aliases_of, serving_policy
from agl_core.app.doctor.calls import OwnedCall, owned_calls
from agl_core.app.rooms import Rooms, beside
from agl_core.config import RunConfig
from agl_core.config.policies import trained_agents
from agl_core.errors import CaptureError, RewardError
from agl_core.interfaces import AdaptedAttempt, Adapter, AttemptRecord
from agl_core.tracing.agent_loop import Stall
from agl_core.training.resources import make_resources
from agl_core.training.rollouts import RolloutPlan
from agl_core.types import AttemptStatus, Losses, Policy, Task
from agl_core.types.resources import RESERVED_PREFIX, agent_matches


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialPlan:
    """What is tried."""

    tasks: Sequence[Task]
    samples: int
    """Attempts per task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The ended attempts of a trial and what the run's adapter makes of them."""

    config: RunConfig
    policies: Sequence[Policy]
    records: Sequence[AttemptRecord]
    calls: Sequence[OwnedCall]
    adapted: Mapping[str, AdaptedAttempt] = field(default_factory=dict[str, AdaptedAttempt])
    """Attempt id to what training would use; attempts that failed or are unusable are missing."""
    scored: Mapping[str, AdaptedAttempt] = field(default_factory=dict[str, AdaptedAttempt])
    """The same and, without any tokens, the attempts that were not captured exactly."""
    capture_errors: Sequence[CaptureError] = ()
    reward_errors: Sequence[RewardError] = ()
    losses: Losses = field(default_factory=Losses)
    """What the rooms and the adapter lost."""
    stalls: Sequence[Stall] = ()
    """What blocked the event loop of async agents and rewards."""

    @property
    def patterns(self) -> list[str]:
        """Names and globs of the agents to train."""
        return trained_agents(self.config, list(self.policies))

    @property
    def succeeded(self) -> list[AttemptRecord]:
        return [
            record for record in self.records if record.attempt.status is AttemptStatus.SUCCEEDED
        ]

    @property
    def agents(self) -> list[str]:
        """Every agent that spoke or ran."""
        names = {owned.known_as for owned in self.calls if owned.agent}
        for record in self.records:
            aliases = aliases_of(record.spans)
            names |= {aliases.get(span.agent, span.agent) for span in record.spans if span.agent}
        return sorted(names)

    def trains(self, agent: str) -> bool:
        """Whether an agent is to be trained and the policy that serves it can be."""
        if not agent or agent.startswith(RESERVED_PREFIX):
            return False
        policy = serving_policy(agent, self.policies)
        chosen = any(agent_matches(pattern, agent) for pattern in self.patterns)
        return chosen and policy is not None and policy.trainable


async def run_trial(rooms: Rooms, config: RunConfig, plan: TrialPlan) -> Trial:
    """Run every task `plan.samples` times in train mode, so that tokens are captured."""
    await rooms.source.abandon(config.name)
    made = make_resources(config, rooms.gateway, rooms.policies, step=0)
    resources = await rooms.source.publish(made)
    work = rooms.source.run(
        RolloutPlan(
            tasks=plan.tasks,
            samples=plan.samples,
            mode="train",
            step=0,
            resources_version=resources.version,
        )
    )
    records = await beside(rooms.runner, work)
    trial = adapt(
        records, config, rooms.policies, rooms.adapter, lost=await rooms.events.take_losses()
    )
    return replace(trial, stalls=rooms.runner.stalls if rooms.runner is not None else ())


def adapt(
    records: Sequence[AttemptRecord],
    config: RunConfig,
    policies: Sequence[Policy],
    adapter: Adapter,
    *,
    lost: Losses,
) -> Trial:
    """Give every attempt that succeeded to the adapter and keep what it refuses as data."""
    adapted: dict[str, AdaptedAttempt] = {}
    scored: dict[str, AdaptedAttempt] = {}
    capture_errors: list[CaptureError] = []
    reward_errors: list[RewardError] = []
    losses = Losses(counts=dict(lost.counts))
    for record in records:
        if record.attempt.status is not AttemptStatus.SUCCEEDED:
            continue
        try:
            found = adapter.adapt(record)
        except RewardError as error:
            reward_errors.append(error)
        except CaptureError as error:
            capture_errors.append(error)
            scored.update(_without_tokens(record, adapter))
        else:
            adapted[record.attempt.id] = scored[record.attempt.id] = found
            losses.merge(found.losses)
    return Trial(
        config=config,
        policies=policies,
        records=records,
        calls=[owned for record in records for owned in owned_calls(record)],
        adapted=adapted,
        scored=scored,
        capture_errors=capture_errors,
        reward_errors=reward_errors,
        losses=losses,
    )


def _without_tokens(record: AttemptRecord, adapter: Adapter) -> dict[str, AdaptedAttempt]:
    """Rewards and agents of an attempt as an evaluation would take it: nobody needs tokens there."""
    rollout = msgspec.structs.replace(record.rollout, mode="test")
    try:
        return {record.attempt.id: adapter.adapt(replace(record, rollout=rollout))}
    except (CaptureError, RewardError):
        return {}
