"""95 % intervals of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agl_core.types import Estimate

_Z = 1.959963984540054
"""97.5 % quantile of the normal distribution."""


def estimate(values: Sequence[float]) -> Estimate:
    """Mean of at least one value with its 95 % interval.

    For values that are all 0 or 1 it is Wilson's score interval (Wilson 1927), which stays within
    0 and 1 and does not collapse when all values agree. For others it is the mean plus and minus
    ``t(n - 1) * s / sqrt(n)``, cut to 0 and 1 where all values lie there. One value that is
    neither 0 nor 1 says nothing of its spread: the interval is the value, and `n` says why.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if all(value in (0.0, 1.0) for value in values):
        low, high = _wilson(mean, count)
    else:
        low, high = _student(values, mean)
        if min(values) >= 0 and max(values) <= 1:
            low, high = max(low, 0.0), min(high, 1.0)
    return Estimate(mean=mean, low=low, high=high, n=count)


def _wilson(share: float, count: int) -> tuple[float, float]:
    z2 = _Z * _Z
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share)


def _student(values: Sequence[float], mean: float) -> tuple[float, float]:
    count = len(values)
    if count == 1:
        return mean, mean
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = _t_quantile(count - 1) * math.sqrt(variance / count)
    return mean - half, mean + half


def _t_quantile(degrees: int) -> float:
    """97.5 % quantile of Student's distribution.

    Exact for one and two degrees of freedom; beyond that the expansion in powers of 1/degrees of
    Abramowitz and Stegun 26.7.5, within 0.3 % at three degrees and closer above.
    """
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:  # noqa: PLR2004 (closed form of two degrees)
        return 0.95 / math.sqrt(2 * 0.975 * 0.025)
    z = _Z
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (power + 1) for power, term in enumerate(terms))
