"""From one advantage per attempt to advantages and weights per sampled token."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import msgspec

from agl_core.errors import TrainingError
from agl_core.types import AgentReturn, CallCredit, TrajectoryGroup, Triplet


def require_returns(returns: Sequence[float]) -> None:
    """Refuse a group without attempts.

    Raises:
        TrainingError: there are no returns.
    """
    if not returns:
        raise TrainingError(
            "A group without attempts has no baseline: drop it before its advantages are taken"
        )


def centred(values: Sequence[float]) -> list[float]:
    """Each value less the mean; exactly 0 where all are equal, without a rounding error."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


_Key = TypeVar("_Key")

Weighting = Literal["token", "sequence", "attempt"]
"""``token``: every sampled token counts 1. ``sequence``: every call counts 1, its tokens share it.
``attempt``: every attempt counts 1, so neither turns nor lengths change its share of the loss."""


def broadcast(
    group: TrajectoryGroup, advantages: Sequence[float], *, weighting: Weighting
) -> list[CallCredit]:
    """Give every trained choice of a group its advantage: the credit rule of the house.

    Units nest: choice in call in agent run in agent in attempt. For attempt i of the group, its
    agent's call j (in causal order), the run k that j belongs to and choice m of j::

        A[i]       = estimator(R)[i]                    R[i] = attempt- plus agent-level rewards
        U'[i,k]    = U[i,k] - mean_i U[i,k]             U: rewards aimed at run k
        c'[i,j]    = c[i,j] - mean_i c[i,j]             c: rewards aimed at call j
        q'[i,j,m]  = q[i,j,m] - mean_{i,m} q[i,j,m]     q: rewards that name choice m

        continued choice:  A[i] + U'[i,k] + c'[i,j] + q'[i,j,m]
        other choices:     q'[i,j,m], and only where a reward names the choice

    and every token of the choice gets that advantage. The means run over the attempts that have
    a continued choice in their k-th run or of their j-th call, and so are trained; a unit that no
    reward names counts 0 there. Choices that no reward
    names stay out of the last mean and its term is 0 for them. Run, call and choice terms are not
    scaled, so the size of such a reward against 1 says how much it matters. A unit that only one
    attempt has is its own mean: its term is 0.

    Since the baseline is taken over attempts before anything is broadcast, the number of an
    agent's calls changes no advantage.

    Args:
        group: Attempts of one task for one agent.
        advantages: ``estimator(R)``, one per attempt; see `over_trained`.
        weighting: How the tokens share the loss.

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
    """``estimator(R)`` over the attempts of which a token is trained with it; 0 for the others.

    An attempt whose only trained choices are ones that rewards name, of calls that nothing
    continued, takes no part in the baseline of the returns: no token of it has that return.

    Args:
        group: Attempts of one task for one agent.
        estimator: Takes a group of these attempts alone; gives one advantage for each.

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
    """U', c' and q' of the credit rule."""
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
        result.update(zip(pool, centred(list(pool.values())), strict=True))
    return result


def _triplets(group: TrajectoryGroup, index: int) -> Iterator[Triplet]:
    for trajectory in group.trajectories[index]:
        yield from trajectory.calls


def _weighted(
    values: Sequence[tuple[Triplet, float]], weighting: Weighting
) -> Iterator[CallCredit]:
    """Spread each choice's advantage over its tokens, with the weights of one attempt."""
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
