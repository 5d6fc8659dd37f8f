"""The records of a trial's attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from agl_core.adapters import aliases_of, serving_policy
from agl_core.config import RunConfig, trained_agents
from agl_core.errors import CaptureError, RewardError
from agl_core.interfaces import AdaptedAttempt, Adapter, AttemptRecord
from agl_core.runner import Stall
from agl_core.types import RESERVED_PREFIX, AttemptStatus, Losses, Policy, any_matches
from agl_doctor._calls import OwnedCall, owned_calls
from agl_doctor._trial import Trial, Tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The ended attempts of a trial and the run's adapter's results for them."""

    config: RunConfig
    policies: Sequence[Policy]
    records: Sequence[AttemptRecord]
    calls: Sequence[OwnedCall]
    adapted: Mapping[str, AdaptedAttempt] = field(default_factory=dict[str, AdaptedAttempt])
    """Training data by attempt id, without failed and unusable attempts."""
    scored: Mapping[str, AdaptedAttempt] = field(default_factory=dict[str, AdaptedAttempt])
    """`adapted` plus, without tokens, the attempts that were not captured exactly."""
    capture_errors: Sequence[CaptureError] = ()
    reward_errors: Sequence[RewardError] = ()
    losses: Losses = field(default_factory=Losses)
    """Losses of the components and the adapter."""
    stalls: Sequence[Stall] = ()
    """What blocked the event loop of async agents and rewards."""

    @property
    def patterns(self) -> list[str]:
        """Names and globs of the agents to train; if there are none, those whose prompts are tuned."""
        tuned = [agent for prompt in self.config.prompts.values() for agent in prompt.agents]
        return trained_agents(self.config, list(self.policies)) or [*dict.fromkeys(tuned)]

    @property
    def succeeded(self) -> list[AttemptRecord]:
        return [
            record for record in self.records if record.attempt.status is AttemptStatus.SUCCEEDED
        ]

    @property
    def agents(self) -> list[str]:
        """Names of all agents that called a model or ran."""
        names = {owned.known_as for owned in self.calls if owned.agent}
        for record in self.records:
            aliases = aliases_of(record.spans)
            names |= {aliases.get(span.agent, span.agent) for span in record.spans if span.agent}
        return sorted(names)

    def trains(self, agent: str) -> bool:
        """Return whether an agent is selected for training and its policy is trainable."""
        if not agent or agent.startswith(RESERVED_PREFIX):
            return False
        policy = serving_policy(agent, self.policies)
        chosen = any_matches(self.patterns, agent)
        return chosen and policy is not None and policy.trainable


def adapt(trial: Trial, tried: Tried) -> Evidence:
    """Adapt every successful attempt and keep the adapter's errors as data."""
    adapted: dict[str, AdaptedAttempt] = {}
    scored: dict[str, AdaptedAttempt] = {}
    capture_errors: list[CaptureError] = []
    reward_errors: list[RewardError] = []
    losses = Losses(counts=dict(tried.losses.counts))
    for record in tried.records:
        if record.attempt.status is not AttemptStatus.SUCCEEDED:
            continue
        try:
            found = trial.adapter.adapt(record)
        except RewardError as error:
            reward_errors.append(error)
        except CaptureError as error:
            capture_errors.append(error)
            scored.update(_without_tokens(record, trial.adapter))
        else:
            adapted[record.attempt.id] = scored[record.attempt.id] = found
            losses.merge(found.losses)
    return Evidence(
        config=trial.config,
        policies=trial.policies,
        records=tried.records,
        calls=[owned for record in tried.records for owned in owned_calls(record)],
        adapted=adapted,
        scored=scored,
        capture_errors=capture_errors,
        reward_errors=reward_errors,
        losses=losses,
        stalls=tried.stalls,
    )


def _without_tokens(record: AttemptRecord, adapter: Adapter) -> dict[str, AdaptedAttempt]:
    """Return an attempt's rewards and agents as an evaluation does, which needs no tokens."""
    rollout = msgspec.structs.replace(record.rollout, mode="test")
    try:
        return {record.attempt.id: adapter.adapt(replace(record, rollout=rollout))}
    except (CaptureError, RewardError):
        return {}
