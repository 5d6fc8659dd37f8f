"""A softmax bandit in plain Python: the smallest policy that an algorithm can train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from agl_core.interfaces import Algorithm
from agl_core.types import AgentReturn, Trajectory, TrajectoryGroup, Triplet, pack_floats, pack_ints

__all__ = ["Bandit", "make_group", "make_triplet"]


def make_triplet(call_id: str, response_ids: Sequence[int], **fields: Any) -> Triplet:
    """Return a call of agent ``agent`` that sampled `response_ids` after the prompt ``[0]``.

    Args:
        call_id: Its call id.
        response_ids: The sampled ids.
        fields: Fields of `Triplet` to replace.
    """
    triplet = Triplet(
        call_id=call_id,
        rollout_id="ro",
        attempt_id="at",
        agent="agent",
        agent_run_id="",
        ordinal=0,
        run_ordinal=0,
        choice=0,
        continued=True,
        prompt_ids=pack_ints([0]),
        response_ids=pack_ints(response_ids),
        logprobs=pack_floats([-1.0] * len(response_ids)),
        logprobs_mode="processed",
        temperature=1.0,
        finish_reason="stop",
        policy="policy",
        policy_version=0,
    )
    return msgspec.structs.replace(triplet, **fields)


def make_group(
    returns: Sequence[AgentReturn], calls: Sequence[Sequence[Triplet]]
) -> TrajectoryGroup:
    """Return a group of attempts, each with one path per call."""
    return TrajectoryGroup(
        group_id="group",
        task_id="task",
        agent="agent",
        policy="policy",
        returns=list(returns),
        trajectories=[[_path(triplet) for triplet in attempt] for attempt in calls],
    )


def _path(triplet: Triplet) -> Trajectory:
    context = len(triplet.prompt_ids)
    return Trajectory(
        rollout_id=triplet.rollout_id,
        attempt_id=triplet.attempt_id,
        group_id="group",
        task_id="task",
        agent=triplet.agent,
        policy=triplet.policy,
        token_ids=triplet.prompt_ids + triplet.response_ids,
        call_index=pack_ints([-1] * context + [0] * len(triplet.response_ids)),
        logprobs=pack_floats([0.0] * context) + triplet.logprobs,
        calls=[triplet],
    )


@dataclass(slots=True)
class Bandit:
    """A policy over arms, trained by the weighted policy gradient on an algorithm's credits.

    Its whole state is `logits` and the generator. If an algorithm has state itself, a run that is
    split in two therefore ends with other logits.
    """

    seed: int = 0
    best: int = 2
    arms: int = 4
    attempts: int = 8
    lr: float = 1.0
    logits: list[float] = field(default_factory=list[float])
    random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        self.logits = self.logits or [0.0] * self.arms
        self.random.seed(self.seed)

    @property
    def probabilities(self) -> list[float]:
        top = max(self.logits)
        weights = [math.exp(logit - top) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]

    def train(self, algorithm: Algorithm, *, steps: int) -> None:
        """Sample groups, have the algorithm credit them, and follow the gradient."""
        for _ in range(steps):
            self._step(algorithm)

    def _step(self, algorithm: Algorithm) -> None:
        probabilities = self.probabilities
        arms = self.random.choices(range(self.arms), probabilities, k=self.attempts)
        group = make_group(
            [
                AgentReturn(
                    rollout_id="ro", attempt_id="at", agent="agent", value=float(arm == self.best)
                )
                for arm in arms
            ],
            [[make_triplet(f"call_{index}", [arm])] for index, arm in enumerate(arms)],
        )
        by_call = {f"call_{index}": arm for index, arm in enumerate(arms)}
        gradient, total = [0.0] * self.arms, 0.0
        for credit in algorithm.credit(group):
            pulled = by_call[credit.call_id]
            for advantage, weight in zip(credit.advantages, credit.weights, strict=True):
                total += weight
                for arm in range(self.arms):
                    rise = (1.0 if arm == pulled else 0.0) - probabilities[arm]
                    gradient[arm] += weight * advantage * rise
        if total:
            for arm in range(self.arms):
                self.logits[arm] += self.lr * gradient[arm] / total
