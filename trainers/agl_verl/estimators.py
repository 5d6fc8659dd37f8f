"""verl's own advantage estimators, applied to the attempts of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator

from agl_core.errors import TrainingError
from agl_core.training.advantages import reinforce_advantages

__all__ = ["SCALED", "USABLE", "WHITENED", "EstimatorName", "group_advantages"]

WHITENED = ("reinforce_plus_plus", "reinforce_plus_plus_baseline")
"""Estimators that bring the advantages of the whole batch to mean 0 and spread 1 at the end."""

USABLE = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo", *WHITENED)
"""Estimators that need nothing but the returns of each group and the lengths of its attempts."""

SCALED = ("grpo", "grpo_vectorized", "grpo_passk")
"""Those that can divide by the spread of the group's returns."""

_VARIANCES = "needs the variance of every token under the weights in training"
_UNUSABLE: Mapping[str, str] = MappingProxyType(
    {
        "gae": "needs a critic's value of every token",
        "remax": "needs the reward of a greedy attempt at every task",
        "gpg": "scales by the share of rewards in the whole batch that are not 0",
        "gdpo": "scales every kind of reward by itself, and a return is their sum",
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
        name: One of `USABLE`.
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
