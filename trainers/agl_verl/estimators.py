"""verl's own advantage estimators, applied to the attempts of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator

from agl_core.errors import TrainingError
from agl_core.training.advantages import reinforce_advantages
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
"""The estimator that takes every channel of rewards by itself."""

WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline", DECOUPLED)
"""Estimators that bring the advantages of the whole batch to mean 0 and spread 1 at the end."""

USABLE = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", *WHITENED)
"""Estimators that need nothing but the returns of each group and the lengths of its attempts."""

SCALED = ("grpo", "grpo_vectorized", "grpo_passk", DECOUPLED)
"""Those that can divide by the spread of the group's returns."""

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
"""An estimator of verl whose advantages are made from the returns of groups alone."""


def group_advantages(
    name: str, returns: Sequence[float], lengths: Sequence[int], *, scale: bool = True
) -> list[float]:
    """One advantage per attempt of a group, by verl's function of that name.

    verl is given one row per attempt with the return on its last token, in double precision. Where
    all returns are equal, or there is one, the advantages are exactly 0: the first is what verl's
    functions give but for rounding, which a division by the spread would blow up. For a group of
    one they give the plain return, that is no baseline at all.

    For `WHITENED` it is what verl's functions whiten in the end, which `agl_verl.whitening` does
    when the batch is complete: the plain return for ``reinforce_plus_plus``, without a baseline and
    with verl's default discount of 1, and the return less the group's mean for the other.

    Args:
        name: One of `USABLE` but `DECOUPLED`.
        returns: One per attempt.
        lengths: Sampled tokens of each attempt; `opo` weighs its baseline by them.
        scale: ``norm_adv_by_std_in_grpo``; only `SCALED` read it.

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
    """One advantage per attempt of a group, by verl's ``gdpo`` before it whitens the batch.

    ::

        A[i] = sum over channels k of  w_k * (r_k[i] - mean(r_k)) / (std(r_k) + 1e-6)

    so that a channel of large rewards does not drown the others (GDPO,
    https://arxiv.org/abs/2601.05242). r_k are the unweighted sums of a channel. An attempt that
    failed has its penalty in each of them, and returns that name no channel are one. Attempts
    without a reward of a channel are left out before; one of weight 0 in ``channel_weights``, which
    leaves out no agent, counts 0 where it is missing.

    Args:
        returns: One per attempt.
        lengths: Sampled tokens of each attempt.
        weights: Channel to w_k, 1 where it is left out.
        scale: ``norm_adv_by_std_in_grpo``.

    Raises:
        TrainingError: the group is empty, or a reward names less than an agent, whose share
            in a channel no advantage of the whole attempt can hold.
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
