"""Plain returns as advantages, with or without the group's mean as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agl_core.training.advantages.broadcast import centred, require_returns

Baseline = Literal["none", "mean"]


def reinforce_advantages(returns: Sequence[float], *, baseline: Baseline = "none") -> list[float]:
    """One advantage per attempt of a group.

    ::

        A_i = R_i              baseline "none"
        A_i = R_i - mean(R)    baseline "mean"; a group of one has advantage 0

    after Williams 1992, "Simple statistical gradient-following algorithms for connectionist
    reinforcement learning". Without a baseline the gradient is unbiased and its variance high, and
    adding a constant to every reward changes what is learned.

    Raises:
        TrainingError: the group is empty.
    """
    require_returns(returns)
    return centred(returns) if baseline == "mean" else list(returns)
