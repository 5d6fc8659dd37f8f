"""Leave-one-out advantages."""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.training.advantages.broadcast import centred, require_returns


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
    require_returns(returns)
    count = len(returns)
    if count == 1:
        return [0.0]
    return [value * count / (count - 1) for value in centred(returns)]
