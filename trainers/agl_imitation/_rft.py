"""The algorithm ``rft``: imitation of the best attempts of each group."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from agl_core.training import Weighting
from agl_core.types import AgentReturn, CallCredit, TrajectoryGroup, Triplet
from agl_imitation._credit import imitated

__all__ = ["RFT", "RFTOptions"]


class RFTOptions(BaseModel):
    """Options of `RFT`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    keep: int | None = Field(default=None, ge=1)
    """Attempts of a group that are imitated, the best first; of equal ones the earlier. None: all
    with the greatest return, or with `min_reward` all that reach it."""
    min_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Least return of an imitated attempt; None: no bound."""
    equal_groups: Literal["skip", "train"] = "skip"
    """Whether a group whose attempts all have the same return is imitated. Nothing in it is better
    than the rest, so by default it trains nothing and is counted as ``groups_without_signal``."""
    weighting: Weighting = "token"
    """How tokens share the loss: each token, each call (``sequence``) or each attempt alike."""


class RFT:
    """Rejection sampling fine-tuning; implements `agl_core.interfaces.Algorithm`.

    For attempt i of a group, whose agent sampled the tokens y[i] after the context x[i]::

        S[i] = R[i] + sum_k U[i,k] + sum_j c[i,j] + sum_{j,m} q[i,j,m]     m: continued choices
        K    = { i : S[i] is the greatest }        by default; see `RFTOptions` for other sets
        L    = - sum_{i in K} sum_t w[i,t] log p(y[i,t] | x[i], y[i,<t]) / sum_{i in K} sum_t w[i,t]

    with R, U, c and q as in `agl_core.training.broadcast`, and w = 1 (see `RFTOptions.weighting`):
    the mean cross-entropy over the tokens of the kept attempts. With ``keep = 1`` it is RAFT (Dong
    et al. 2023, arXiv:2304.06767), with `min_reward` the Improve step of ReST (Gulcehre et al.
    2023, arXiv:2308.08998), with one Grow step each.

    Tokens that are not kept have weight 0, so they do not change the size of a step. An attempt
    that failed counts in the comparison with its penalty and is never imitated. A choice that the
    conversation did not continue is imitated if its reward is the greatest of the choices that
    rewards name in the same call of the group, and these are not all equal.
    """

    loss = "cross_entropy"

    def __init__(self, options: RFTOptions) -> None:
        self.options = options

    @property
    def loss_options(self) -> Mapping[str, Any]:
        """None: the loss reads the weights alone."""
        return {}

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """Return weights and advantage 1 for the tokens of kept choices, and 0 for all others.

        Raises:
            TrainingError: the group is empty.
        """
        kept = self._kept(group)
        return [
            each if (each.call_id, each.choice) in kept else _unused(each)
            for each in imitated(group, weighting=self.options.weighting)
        ]

    def _kept(self, group: TrajectoryGroup) -> set[tuple[str, int]]:
        attempts = self._best(group)
        kept = {
            (triplet.call_id, triplet.choice)
            for index in attempts
            for triplet in _triplets(group, index)
            if triplet.continued
        }
        return kept | set(_best_siblings(group))

    def _best(self, group: TrajectoryGroup) -> list[int]:
        """Return the indices of the attempts to imitate."""
        options = self.options
        scores = {
            index: _score(returned, _triplets(group, index))
            for index, returned in enumerate(group.returns)
            if any(triplet.continued for triplet in _triplets(group, index))
        }
        if len(set(scores.values())) < 2 and options.equal_groups == "skip":  # noqa: PLR2004
            return []
        least = -math.inf if options.min_reward is None else options.min_reward
        usable = [
            index
            for index, score in scores.items()
            if score >= least and group.returns[index].failure is None
        ]
        usable.sort(key=lambda index: -scores[index])
        if options.keep is not None:
            return usable[: options.keep]
        if options.min_reward is not None:
            return usable
        return [index for index in usable if scores[index] == scores[usable[0]]]


def _score(returned: AgentReturn, triplets: Sequence[Triplet]) -> float:
    """Return S[i] of `RFT`."""
    continued = {(triplet.call_id, triplet.choice) for triplet in triplets if triplet.continued}
    chosen = [
        value
        for call_id, values in returned.choices.items()
        for choice, value in values.items()
        if (call_id, choice) in continued
    ]
    return math.fsum([returned.value, *returned.runs.values(), *returned.calls.values(), *chosen])


def _best_siblings(group: TrajectoryGroup) -> Iterator[tuple[str, int]]:
    """Yield the choices without continuation that are better than others of the same call."""
    named: dict[int, dict[tuple[str, int], float]] = defaultdict(dict)
    siblings: set[tuple[str, int]] = set()
    for index, returned in enumerate(group.returns):
        for triplet in _triplets(group, index):
            key = (triplet.call_id, triplet.choice)
            value = returned.choices.get(triplet.call_id, {}).get(triplet.choice)
            if value is not None and returned.failure is None:
                named[triplet.ordinal][key] = value
                if not triplet.continued:
                    siblings.add(key)
    for pool in named.values():
        greatest = max(pool.values())
        if min(pool.values()) < greatest:
            yield from (key for key, value in pool.items() if value == greatest and key in siblings)


def _triplets(group: TrajectoryGroup, index: int) -> list[Triplet]:
    return [triplet for path in group.trajectories[index] for triplet in path.calls]


def _unused(credit: CallCredit) -> CallCredit:
    nothing = [0.0] * len(credit.weights)
    return msgspec.structs.replace(credit, advantages=nothing, weights=nothing)
