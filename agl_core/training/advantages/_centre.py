"""Means and spreads that are exact where they must be."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agl_core.errors import TrainingError


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
    """Each value less the mean; exactly 0 where all are equal, whatever rounding would leave."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]
