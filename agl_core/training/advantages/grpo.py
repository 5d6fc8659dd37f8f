"""Group-relative advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agl_core.training.advantages.broadcast import centred, require_returns


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
    require_returns(returns)
    deviations = centred(returns)
    if not scale or len(returns) == 1:
        return deviations
    variance = math.fsum(value * value for value in deviations) / (len(returns) - 1)
    spread = math.sqrt(variance) + eps
    return [value / spread for value in deviations]
