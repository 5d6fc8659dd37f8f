"""Assignment of rewards to their targets: choice, call, agent run, agent or attempt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agl_core.adapters._join import JoinedAttempt
from agl_core.adapters._tree import Sample
from agl_core.errors import RewardError
from agl_core.tracing import reward_value
from agl_core.types import AgentReturn, AttemptStatus, Reward, RewardTarget

_LARGEST: Final = 1e30
"""Greatest absolute return. Differences, squares and sums over a batch then stay finite in 64-bit
floats, and advantages in the 32-bit floats of a `Batch`."""


@dataclass(slots=True)
class _AgentSums:
    value: float = 0.0
    runs: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    choices: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    given: set[str] = field(default_factory=set[str])
    channels: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """The rewards of one attempt, summed per target."""

    returns: Mapping[str, AgentReturn]
    """Returns of the trained agents that have a sample, by agent."""
    aimed: Mapping[tuple[str, int], float]
    """Weighted rewards for exactly one choice, by call id and choice index."""
    score: float
    channels: Mapping[str, float]


def credit(
    joined: JoinedAttempt,
    samples: Mapping[str, Sequence[Sample]],
    *,
    channel_weights: Mapping[str, float],
) -> Credited:
    """Sum the rewards of an attempt per target, each weighted by its channel.

    Several rewards for one target and channel are added. An agent without any reward is marked as
    `unrewarded`, which differs from a return of 0. Rewards for agents, runs and calls that are not
    trained still count in the attempt's score. Rewards of an attempt that did not succeed are
    ignored. Rewards that train no agent are counted as losses.

    Args:
        joined: The attempt; this function adds to its `losses`.
        samples: Linked samples per trained agent.
        channel_weights: Weight per channel; channels without one have weight 1.

    Raises:
        RewardError: an attempt that succeeded has no reward; a reward is not a finite number, or
            names several targets, a target that is not in the attempt, or a run id of several
            agents; or the sum of the absolute rewards is too large for training.
    """
    given = joined.record.rewards
    crediting = _Crediting(joined, samples, channel_weights)
    if joined.record.attempt.status is not AttemptStatus.SUCCEEDED:
        joined.losses.add("rewards_of_failed_attempts", len(given))
        return crediting.result()
    if not given:
        raise RewardError(
            f"No reward arrived for attempt {joined.record.attempt.id!r} of task "
            f"{joined.record.rollout.task.id!r}: return a number from the reward function, or "
            f"call agl.emit_reward before the agent returns"
        )
    for reward in given:
        crediting.add(reward)
    crediting.count_unrewarded()
    return crediting.result()


class _Crediting:
    def __init__(
        self,
        joined: JoinedAttempt,
        samples: Mapping[str, Sequence[Sample]],
        channel_weights: Mapping[str, float],
    ) -> None:
        self._joined = joined
        self._weights = channel_weights
        self._sums = {agent: _AgentSums() for agent in samples}
        self._choices: dict[str, list[Sample]] = defaultdict(list)
        self._sampled_runs: set[tuple[str, str]] = set()
        for of_agent in samples.values():
            for sample in of_agent:
                self._choices[sample.call_id].append(sample)
                self._sampled_runs.add((sample.joined.agent, sample.joined.agent_run_id))
        self._names = {name: name for name in joined.seen | joined.aliases.keys()}
        self._speakers = {call.call.id: call.agent for call in joined.calls}
        self._aimed: dict[tuple[str, int], float] = defaultdict(float)
        self._score = 0.0
        self._channels: dict[str, float] = defaultdict(float)
        self._size = 0.0

    def add(self, reward: Reward) -> None:
        giver = repr(reward.source) if reward.source else "emit_reward"
        raw = reward_value(reward.value, source=f"{giver} on channel {reward.channel!r}")
        value = raw * self._weights.get(reward.channel, 1.0)
        target = reward.target
        target.check(f"Reward {raw} on channel {reward.channel!r}")
        agents = self._aim(target, value)
        for agent in agents:
            self._sums[agent].channels[reward.channel] += raw
            if target.call is None and target.agent_run is None and self._counts(reward):
                self._sums[agent].given.add(reward.channel)
        self._score += value
        self._channels[reward.channel] += raw
        self._check_size(max(abs(raw), abs(value)))

    def _counts(self, reward: Reward) -> bool:
        return self._weights.get(reward.channel, 1.0) != 0

    def _check_size(self, size: float) -> None:
        """Check the sum of all absolute rewards, which is an upper bound of every return."""
        self._size += size
        if not self._size <= _LARGEST:
            raise RewardError(
                f"The sizes of the rewards of attempt {self._joined.record.attempt.id!r} add up to "
                f"{self._size:g}, and training keeps returns in 32-bit floats: keep the sum within "
                f"{_LARGEST:g}"
            )

    def _aim(self, target: RewardTarget, value: float) -> list[str]:
        """Add the value to its target; return the trained agents that get it."""
        if target.call is not None:
            return self._aim_at_call(target.call, target.choice, value)
        if target.agent_run is not None:
            agent = self._owner(target.agent_run, target.agent)
            if (agent, target.agent_run) not in self._sampled_runs:
                self._count("rewards_untrained")
                return []
            self._sums[agent].runs[target.agent_run] += value
            return [agent]
        if target.agent is not None:
            agent = self._known(target.agent, self._names, kind="agent")
            named = [name for name in self._sums if agent in (name, self._joined.aliases.get(name))]
            if not named:
                self._count("rewards_untrained")
            for name in named:
                self._sums[name].value += value
            return named
        for sums in self._sums.values():
            sums.value += value
        return list(self._sums)

    def _aim_at_call(self, call_id: str, choice: int | None, value: float) -> list[str]:
        if call_id in self._joined.dropped:
            self._count("rewards_of_dropped_calls")
            return []
        agent = self._known(call_id, self._speakers, kind="call")
        siblings = self._choices.get(call_id)
        if siblings is None:
            self._count("rewards_untrained")
            return []
        chosen = [sample for sample in siblings if _matches(sample, choice)]
        if not chosen:
            indices = [sample.choice.index for sample in siblings]
            raise RewardError(
                f"A reward names call {call_id!r}"
                + (f" and choice {choice}" if choice is not None else " and no choice")
                + f", but that call has the choices {indices}"
                + (" and none of them was continued" if choice is None else "")
                + ": name one of them with choice="
            )
        for sample in chosen:
            self._aimed[call_id, sample.choice.index] += value
        if choice is None or len(siblings) == 1:
            self._sums[agent].calls[call_id] += value
        else:
            of_call = self._sums[agent].choices[call_id]
            of_call[choice] = of_call.get(choice, 0.0) + value
        return [agent]

    def _owner(self, run: str, agent: str | None) -> str:
        """Return the agent whose run a reward names; several agents may use the same run id."""
        named = sorted(each for each, known in self._joined.runs if known == run)
        if agent is None and len(named) > 1:
            raise RewardError(
                f"A reward names agent run {run!r}, an id that the agents {named} share in attempt "
                f"{self._joined.record.attempt.id!r}: name one of them too, with agent="
            )
        aliases = self._joined.aliases
        owners = {
            known: each
            for each, known in self._joined.runs
            if agent in (None, each, aliases.get(each))
        }
        return self._known(run, owners, kind="agent run" if agent is None else f"run of {agent!r}")

    def _known(self, name: str, known: Mapping[str, str], *, kind: str) -> str:
        if name in known:
            return known[name]
        raise RewardError(
            f"A reward names {kind} {name!r}, which attempt {self._joined.record.attempt.id!r} "
            f"never had; it had {sorted(known)}"
        )

    def _count(self, cause: str) -> None:
        if self._joined.record.rollout.mode == "train":
            self._joined.losses.add(cause)

    def count_unrewarded(self) -> None:
        """Count agents without a reward, and choices that only a reward for them would train."""
        silent = sum(1 for sums in self._sums.values() if not sums.channels)
        self._joined.losses.add("agents_without_reward", silent)
        unnamed = sum(
            1
            for siblings in self._choices.values()
            for sample in siblings
            if not sample.continued and (sample.call_id, sample.choice.index) not in self._aimed
        )
        self._joined.losses.add("choices_without_reward", unnamed)

    def result(self) -> Credited:
        rollout, attempt = self._joined.record.rollout, self._joined.record.attempt
        succeeded = attempt.status is AttemptStatus.SUCCEEDED
        returns = {
            agent: AgentReturn(
                rollout_id=rollout.id,
                attempt_id=attempt.id,
                agent=agent,
                value=sums.value,
                runs=dict(sums.runs),
                calls=dict(sums.calls),
                choices={call: dict(values) for call, values in sums.choices.items()},
                channels=dict(sums.channels),
                given=tuple(sorted(sums.given)),
                unrewarded=succeeded and not sums.channels,
            )
            for agent, sums in self._sums.items()
        }
        return Credited(
            returns=returns,
            aimed=dict(self._aimed),
            score=self._score,
            channels=dict(self._channels),
        )


def _matches(sample: Sample, choice: int | None) -> bool:
    return sample.continued if choice is None else sample.choice.index == choice
