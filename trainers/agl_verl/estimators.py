"""verl's own advantage estimators, applied to the attempts of one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator

from agl_core.errors import TrainingError

__all__ = ["SCALED", "USABLE", "EstimatorName", "group_advantages"]

USABLE = ("grpo", "grpo_vectorized", "grpo_passk", "rloo", "rloo_vectorized", "opo")
"""Estimators that need nothing but the returns of one group and the lengths of its attempts."""

SCALED = ("grpo", "grpo_vectorized", "grpo_passk")
"""Those that can divide by the spread of the group's returns."""

_BATCH = "whitens its advantages over the whole batch"
_VARIANCES = "needs the variance of every token under the weights in training"
_UNUSABLE: Mapping[str, str] = MappingProxyType(
    {
        "gae": "needs a critic's value of every token",
        "remax": "needs the reward of a greedy attempt at every task",
        "gpg": "scales by the share of rewards in the whole batch that are not 0",
        "gdpo": _BATCH,
        "reinforce_plus_plus": _BATCH,
        "reinforce_plus_plus_baseline": _BATCH,
        "optimal_token_baseline": _VARIANCES,
        "tir_optimal_token_baseline": _VARIANCES,
    }
)


def _usable(name: str) -> str:
    if name not in USABLE:
        why = _UNUSABLE.get(name, "is not one of verl's")
        raise ValueError(
            f"estimator {name!r} {why}. Advantages are taken group by group, before rewards of "
            f"runs, calls and choices are added, so these can be used: {', '.join(USABLE)}"
        )
    return name


EstimatorName = Annotated[str, AfterValidator(_usable)]
"""An estimator of verl that needs one group and nothing else."""


def group_advantages(
    name: str, returns: Sequence[float], lengths: Sequence[int], *, scale: bool = True
) -> list[float]:
    """One advantage per attempt of a group, by verl's function of that name.

    verl is given one row per attempt with the return on its last token, in double precision. Where
    all returns are equal, or there is one, the advantages are exactly 0: the first is what verl's
    functions give but for rounding, which a division by the spread would blow up. For a group of
    one they give the plain return, that is no baseline at all.

    Args:
        name: One of `USABLE`.
        returns: One per attempt.
        lengths: Sampled tokens of each attempt; `opo` weighs its baseline by them.
        scale: ``norm_adv_by_std_in_grpo``; only `SCALED` read it.

    Raises:
        TrainingError: the group is empty.
    """
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
