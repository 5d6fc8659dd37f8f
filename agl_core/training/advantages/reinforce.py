"""REINFORCE advantages: returns, with or without the group's mean as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agl_core.training.advantages.broadcast import centred, require_returns

Baseline = Literal["none", "mean"]


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
    require_returns(returns)
    return centred(returns) if baseline == "mean" else list(returns)
