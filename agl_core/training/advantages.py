"""Advantages of attempts relative to their group, and of sampled tokens.

An estimator returns one advantage per attempt. `broadcast` is the credit rule that assigns
advantages to tokens, which all estimators share.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec

from agl_core.errors import TrainingError
from agl_core.types import AgentReturn, CallCredit, TrajectoryGroup, Triplet

_Key = TypeVar("_Key")

Baseline = Literal["none", "mean"]
Weighting = Literal["token", "sequence", "attempt"]
"""How tokens are weighted in the loss. ``token``: every sampled token has weight 1. ``sequence``:
the tokens of a call share a weight of 1. ``attempt``: the tokens of an attempt share a weight of 1,
so its share of the loss depends neither on the number of calls nor on their lengths."""


def grpo_advantages(
    returns: Sequence[float], *, scale: bool = True, eps: float = 1e-6
) -> list[float]:
    """Return one advantage per attempt: the return relative to the group's mean and deviation.

    ::

        A_i = (R_i - mean(R)) / (std(R) + eps)        std with n - 1

    after Shao et al. 2024, "DeepSeekMath", section 4.1 (arXiv:2402.03300). Without `scale`, there
    is no division, which removes the high weight of groups with nearly equal returns (Liu et al.
    2025, "Understanding R1-Zero-Like Training", arXiv:2503.20783). In a group of one attempt, the
    advantage is 0.

    Raises:
        TrainingError: the group is empty.
    """
    _require_returns(returns)
    deviations = _centred(returns)
    if not scale or len(returns) == 1:
        return deviations
    variance = math.fsum(value * value for value in deviations) / (len(returns) - 1)
    spread = math.sqrt(variance) + eps
    return [value / spread for value in deviations]


def reinforce_advantages(returns: Sequence[float], *, baseline: Baseline = "none") -> list[float]:
    """Return one advantage per attempt of a group.

    ::

        A_i = R_i              baseline "none"
        A_i = R_i - mean(R)    baseline "mean"; 0 in a group of one attempt

    after Williams 1992, "Simple statistical gradient-following algorithms for connectionist
    reinforcement learning". Without a baseline, the gradient is unbiased but has a high variance,
    and adding a constant to every reward changes the updates.

    Raises:
        TrainingError: the group is empty.
    """
    _require_returns(returns)
    return _centred(returns) if baseline == "mean" else list(returns)


def rloo_advantages(returns: Sequence[float]) -> list[float]:
    """Return one advantage per attempt: the return minus the mean return of the other attempts.

    ::

        A_i = R_i - sum_{j != i} R_j / (n - 1)  =  n / (n - 1) * (R_i - mean(R))

    after Kool et al. 2019, "Buy 4 REINFORCE Samples, Get a Baseline for Free!", and Ahmadian et
    al. 2024, "Back to Basics" (arXiv:2402.14740): the baseline does not depend on the attempt's own
    return, so the gradient is unbiased. In a group of one attempt, the advantage is 0.

    Raises:
        TrainingError: the group is empty.
    """
    _require_returns(returns)
    count = len(returns)
    if count == 1:
        return [0.0]
    return [value * count / (count - 1) for value in _centred(returns)]


def broadcast(
    group: TrajectoryGroup, advantages: Sequence[float], *, weighting: Weighting
) -> list[CallCredit]:
    """Return the advantage and token weights of every trained choice of a group.

    These units are nested: attempt, agent, agent run, call, choice. For attempt i of the group, its
    agent's call j (in causal order), the run k of call j and choice m of call j::

        A[i]       = estimator(R)[i]                    R[i] = attempt- plus agent-level rewards
        U'[i,k]    = U[i,k] - mean_i U[i,k]             U: rewards that name run k
        c'[i,j]    = c[i,j] - mean_i c[i,j]             c: rewards that name call j
        q'[i,j,m]  = q[i,j,m] - mean_{i,m} q[i,j,m]     q: rewards that name choice m

        continued choice:  A[i] + U'[i,k] + c'[i,j] + q'[i,j,m]
        other choices:     q'[i,j,m], and only if a reward names the choice

    Every token of the choice has this advantage. The means of U and c are over the attempts with a
    continued choice in their k-th run or of their j-th call; a run or call without a reward counts
    as 0. The mean of q is over choices that a reward names; the term is 0 for other choices. Run,
    call and choice terms are not scaled, so the effect of such a reward depends on its absolute
    size. If a mean is over a single value, the term is 0.

    The baseline is computed over attempts before advantages are assigned to calls, so it does not
    depend on the number of an agent's calls.

    Args:
        group: Attempts of one task for one agent.
        advantages: ``estimator(R)``, one per attempt; see `over_trained`.
        weighting: How tokens are weighted in the loss.

    Raises:
        TrainingError: the group is empty, or its lists and `advantages` differ in length.
    """
    if not group.returns or not (len(group.returns) == len(group.trajectories) == len(advantages)):
        raise TrainingError(
            f"Group {group.group_id!r} of agent {group.agent!r} has {len(group.returns)} returns, "
            f"{len(group.trajectories)} attempts and {len(advantages)} advantages: it needs one "
            f"of each per attempt, and at least one attempt"
        )
    runs, calls, choices = _centred_rewards(group)
    credits_: list[CallCredit] = []
    for index, advantage in enumerate(advantages):
        values: list[tuple[Triplet, float]] = []
        for triplet in _triplets(group, index):
            key = (triplet.call_id, triplet.choice)
            if triplet.continued:
                value = (
                    advantage
                    + runs[index, triplet.run_ordinal]
                    + calls[index, triplet.ordinal]
                    + choices.get(key, 0.0)
                )
                values.append((triplet, value))
            elif key in choices:
                values.append((triplet, choices[key]))
        credits_.extend(_weighted(values, weighting))
    return credits_


def over_trained(
    group: TrajectoryGroup, estimator: Callable[[TrajectoryGroup], Sequence[float]]
) -> list[float]:
    """Return ``estimator(R)`` for the attempts that have a continued choice, and 0 for the others.

    An attempt without a continued choice is left out of the baseline of the returns, because none
    of its tokens is trained with the return. Only its choices that a reward names are trained.

    Args:
        group: Attempts of one task for one agent.
        estimator: Called with a group of the attempts with a continued choice; returns one
            advantage per attempt.

    Raises:
        TrainingError: the group is empty.
    """
    members = [
        index
        for index in range(len(group.trajectories))
        if any(triplet.continued for triplet in _triplets(group, index))
    ]
    if len(members) == len(group.returns):
        return list(estimator(group))
    found = [0.0] * len(group.returns)
    if members:
        trained = msgspec.structs.replace(
            group,
            returns=[group.returns[index] for index in members],
            trajectories=[group.trajectories[index] for index in members],
        )
        for index, advantage in zip(members, estimator(trained), strict=True):
            found[index] = advantage
    return found


_Unit = tuple[int, int]
"""(attempt index, ordinal of the call or run)."""


def _centred_rewards(
    group: TrajectoryGroup,
) -> tuple[dict[_Unit, float], dict[_Unit, float], dict[tuple[str, int], float]]:
    """Return U', c' and q' of `broadcast`."""
    runs: dict[int, dict[_Unit, float]] = defaultdict(dict)
    calls: dict[int, dict[_Unit, float]] = defaultdict(dict)
    choices: dict[int, dict[tuple[str, int], float]] = defaultdict(dict)
    for index, returned in enumerate(group.returns):
        for triplet in _triplets(group, index):
            run, call = triplet.run_ordinal, triplet.ordinal
            if triplet.continued:
                runs[run][index, run] = returned.runs.get(triplet.agent_run_id, 0.0)
                calls[call][index, call] = returned.calls.get(triplet.call_id, 0.0)
            named = _named(returned, triplet)
            if named is not None:
                choices[call][triplet.call_id, triplet.choice] = named
    return _centre_each(runs), _centre_each(calls), _centre_each(choices)


def _named(returned: AgentReturn, triplet: Triplet) -> float | None:
    return returned.choices.get(triplet.call_id, {}).get(triplet.choice)


def _centre_each(pools: dict[int, dict[_Key, float]]) -> dict[_Key, float]:
    result: dict[_Key, float] = {}
    for pool in pools.values():
        result.update(zip(pool, _centred(list(pool.values())), strict=True))
    return result


def _triplets(group: TrajectoryGroup, index: int) -> Iterator[Triplet]:
    for trajectory in group.trajectories[index]:
        yield from trajectory.calls


def _weighted(
    values: Sequence[tuple[Triplet, float]], weighting: Weighting
) -> Iterator[CallCredit]:
    """Yield the credit of each choice of one attempt, with its advantage for every token."""
    total = sum(len(triplet.response_ids) for triplet, _ in values)
    for triplet, value in values:
        length = len(triplet.response_ids)
        share = {"token": 1.0, "sequence": 1.0 / length, "attempt": 1.0 / total}[weighting]
        yield CallCredit(
            call_id=triplet.call_id,
            choice=triplet.choice,
            advantages=[value] * length,
            weights=[share] * length,
        )


def _require_returns(returns: Sequence[float]) -> None:
    """Check that a group has attempts.

    Raises:
        TrainingError: there are no returns.
    """
    if not returns:
        raise TrainingError(
            "A group without attempts has no baseline: drop it before its advantages are taken"
        )


def _centred(values: Sequence[float]) -> list[float]:
    """Return each value minus the mean; exactly 0, without rounding errors, if all are equal."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]
