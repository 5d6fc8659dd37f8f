"""verl's advantage estimators, applied to the attempts of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator

from agl_core.errors import TrainingError
from agl_core.training import reinforce_advantages
from agl_core.types import AgentReturn

__all__ = [
    "DECOUPLED",
    "SCALED",
    "USABLE",
    "WHITENED",
    "EstimatorName",
    "decoupled_advantages",
    "group_advantages",
]

DECOUPLED = "gdpo"
"""The estimator that normalises every reward channel separately."""

WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline", DECOUPLED)
"""Estimators that finally whiten the batch's advantages: mean 0, standard deviation 1."""

USABLE = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", *WHITENED)
"""Estimators that need only the returns of each group and the lengths of its attempts."""

SCALED = ("grpo", "grpo_vectorized", "grpo_passk", DECOUPLED)
"""Estimators that can divide by the standard deviation of the group's returns."""

_VARIANCES = "needs the variance of every token under the weights in training"
_UNUSABLE: Mapping[str, str] = MappingProxyType(
    {
        "gae": "needs a critic's value of every token",
        "remax": "needs the reward of a greedy attempt at every task",
        "gpg": "scales by the share of rewards in the whole batch that are not 0",
        "optimal_token_baseline": _VARIANCES,
        "tir_optimal_token_baseline": _VARIANCES,
    }
)


def _usable(name: str) -> str:
    if name not in USABLE:
        why = _UNUSABLE.get(name, "is not one of verl's")
        raise ValueError(
            f"estimator {name!r} {why}. Advantages are taken from the returns of one group at a "
            f"time, so these can be used: {', '.join(USABLE)}"
        )
    return name


EstimatorName = Annotated[str, AfterValidator(_usable)]
"""Name of an estimator in `USABLE`."""


def group_advantages(
    name: str, returns: Sequence[float], lengths: Sequence[int], *, scale: bool = True
) -> list[float]:
    """Return one advantage per attempt of a group, computed by verl's function of that name.

    verl gets one row per attempt with the return on its last token, in double precision. If all
    returns are equal, or there is only one, the advantages are exactly 0. For equal returns verl's
    functions give 0 except for rounding errors, which the division by the standard deviation would
    amplify. For a group of one they give the return without a baseline.

    For `WHITENED` estimators the result is the value before whitening, which `agl_verl._whitening`
    does when the batch is complete: for ``reinforce_plus_plus`` the return without a baseline, with
    verl's default discount of 1, and for ``reinforce_plus_plus_baseline`` the return minus the
    group's mean.

    Args:
        name: One of `USABLE` except `DECOUPLED`.
        returns: One per attempt.
        lengths: Sampled tokens of each attempt; `opo` weights its baseline by them.
        scale: ``norm_adv_by_std_in_grpo``; only `SCALED` estimators use it.

    Raises:
        TrainingError: the group is empty.
    """
    if name in WHITENED:
        baseline = "none" if name == "reinforce_plus_plus" else "mean"
        return [float(each) for each in reinforce_advantages(returns, baseline=baseline)]
    if not returns:
        raise TrainingError(
            "A group without attempts has no baseline: drop it before its advantages are taken"
        )
    if min(returns) == max(returns):
        return [0.0] * len(returns)
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415

    from agl_verl import _compat  # noqa: PLC0415

    sizes = torch.tensor([max(length, 1) for length in lengths])
    places = torch.arange(int(sizes.max()))
    mask = (places[None] < sizes[:, None]).double()
    rewards = torch.zeros_like(mask)
    rewards[torch.arange(len(returns)), sizes - 1] = torch.tensor(returns, dtype=torch.float64)
    options = {"norm_adv_by_std_in_grpo": scale} if name in SCALED else {}
    arguments = {} if name == "grpo_passk" else options
    advantages, _ = _compat.advantage_estimator(name)(
        token_level_rewards=rewards,
        response_mask=mask,
        index=np.zeros(len(returns), dtype=np.int64),
        config=options,
        **arguments,
    )
    return [float(value) for value in advantages[:, 0]]


def decoupled_advantages(
    returns: Sequence[AgentReturn],
    lengths: Sequence[int],
    *,
    weights: Mapping[str, float],
    scale: bool = True,
) -> list[float]:
    """Return one advantage per attempt of a group as verl's ``gdpo`` does, before whitening.

    ::

        A[i] = sum over channels k of  w_k * (r_k[i] - mean(r_k)) / (std(r_k) + 1e-6)

    so that a channel with large rewards does not dominate the others (GDPO,
    https://arxiv.org/abs/2601.05242). r_k are the unweighted sums of a channel. A failed attempt
    has its penalty in every channel, and returns without channels are treated as one channel.
    Attempts that lack a channel are already excluded, except for a channel with weight 0 in
    ``channel_weights``: there a missing reward counts as 0.

    Args:
        returns: One per attempt.
        lengths: Sampled tokens of each attempt.
        weights: w_k by channel; 1 if missing.
        scale: ``norm_adv_by_std_in_grpo``.

    Raises:
        TrainingError: the group is empty, or a reward's target is a run, call or choice, which
            one advantage per attempt cannot represent.
    """
    channels = sorted({channel for each in returns for channel in each.channels})
    if not channels:
        return group_advantages("grpo", [each.value for each in returns], lengths, scale=scale)
    for each in returns:
        if each.runs or each.calls or each.choices:
            raise TrainingError(
                f"Attempt {each.attempt_id!r} has rewards of single runs or calls of agent "
                f"{each.agent!r}, which estimator {DECOUPLED!r} cannot distinguish from the others of "
                f"their channel: reward the agent or the attempt, or choose another estimator"
            )
    total = [0.0] * len(returns)
    for channel in channels:
        values = [_in_channel(each, channel) for each in returns]
        found = group_advantages("grpo", values, lengths, scale=scale)
        weight = weights.get(channel, 1.0)
        total = [sum_ + weight * value for sum_, value in zip(total, found, strict=True)]
    return total


def _in_channel(returned: AgentReturn, channel: str) -> float:
    if returned.failure is not None:
        return returned.value
    return returned.channels.get(channel, 0.0)
