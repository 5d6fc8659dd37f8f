"""Comparison of candidates on the same tasks."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from agl_core.errors import ConfigError
from agl_prompts._seen import Seen

METHOD: Final = "two-sided paired randomisation test"
"""Name of the test of `Difference`."""
_LEVEL: Final = 0.05
_EXACT: Final = 14
"""Largest number of differences whose signs are all enumerated."""
_DRAWS: Final = 20_000
_TOLERANCE: Final = 1e-9


def p_value(before: Sequence[Seen], after: Sequence[Seen]) -> float:
    """Return the probability of an improvement this large if both candidates are equally good.

    One-sided paired randomisation test (Fisher 1935, The Design of Experiments, section 21): for
    equal candidates, the two scores of a task are exchangeable, so each sign of the difference
    ``d_i = after_i - before_i`` has probability 1/2, and ``p = P(sum s_i |d_i| >= sum d_i)``. It
    assumes no distribution of the scores and holds at any number of tasks. Its smallest value is
    ``2 ** -n`` with n tasks of different scores: 5 tasks at least for a level of 0.05. The signs
    are enumerated for up to 14 differences, and drawn 20,000 times for more.

    Args:
        before: Results of one candidate.
        after: Results of the other on the same tasks, in the same order. Tasks that either lost
            are left out.
    """
    pairs = zip(before, after, strict=True)
    return _one_sided([b.score - a.score for a, b in pairs if not (a.lost or b.lost)])


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The mean difference of two scores of the same tasks."""

    mean: float
    low: float | None
    """Lower end of the 95 % interval; None if the tasks are too few for one."""
    high: float | None
    p: float
    n: int
    """Number of tasks."""
    method: str = METHOD


def difference_of(before: Mapping[str, float], after: Mapping[str, float]) -> Difference:
    """Return the difference of scores by task, with its 95 % interval and p-value.

    ``p`` is that of the two-sided paired randomisation test: twice the smaller of the p-values in
    both directions, see `p_value`. The interval holds the shifts of all scores that the same test
    does not reject at 5 %. By the typical values of Hartigan (1969, Using subsample values as
    typical values, JASA 64), these lie between two order statistics of the means of all ``2^n - 1``
    subsets of the differences. The subsets are enumerated for up to 14 tasks, and 20,000 are drawn
    for more. Fewer than six tasks have no interval.

    Raises:
        ConfigError: the tasks differ, or there are none.
    """
    if before.keys() != after.keys() or not before:
        raise ConfigError(
            f"Scores of {len(before)} and {len(after)} tasks cannot be compared in pairs: evaluate "
            f"both versions on the same tasks"
        )
    differences = [after[task] - score for task, score in before.items()]
    upwards = _one_sided(differences)
    downwards = _one_sided([-each for each in differences])
    low, high = _interval(differences)
    return Difference(
        mean=math.fsum(differences) / len(differences),
        low=low,
        high=high,
        p=min(1.0, 2 * min(upwards, downwards)),
        n=len(differences),
    )


def _one_sided(differences: Sequence[float]) -> float:
    sizes = [abs(each) for each in differences if each]
    reached = math.fsum(differences) - _TOLERANCE
    if not sizes:
        return 1.0
    sums = [
        sum(size if sign else -size for size, sign in zip(sizes, signs, strict=True))
        for signs in _subsets(len(sizes))
    ]
    hits = sum(each >= reached for each in sums)
    drawn = len(sizes) > _EXACT
    return (hits + drawn) / (len(sums) + drawn)


def _interval(differences: Sequence[float]) -> tuple[float | None, float | None]:
    means = sorted(
        math.fsum(chosen) / len(chosen)
        for subset in _subsets(len(differences))
        if (chosen := [*itertools.compress(differences, subset)])
    )
    outside = int(_LEVEL / 2 * (len(means) + 1))
    if not outside:
        return None, None
    return means[outside - 1], means[-outside]


def _subsets(size: int) -> Iterator[Sequence[int]]:
    """Yield all subsets of a set, or many random ones, as 1 and 0 for each element."""
    if size <= _EXACT:
        yield from itertools.product((0, 1), repeat=size)
        return
    rng = random.Random(0)  # noqa: S311 (a test, not a secret)
    for _ in range(_DRAWS):
        yield [*map(int, f"{rng.getrandbits(size):0{size}b}")]


def standings(results: Sequence[Sequence[Seen]]) -> list[float]:
    """Return the score of each candidate on the same tasks, fair to those that lost tasks.

    A score is the mean difference to the task's mean over the candidates that did not lose it.
    Without lost tasks that orders candidates as their means do; with lost tasks, a candidate has no
    advantage from losing hard ones. -inf if a candidate lost every task.

    Args:
        results: One row per candidate; all rows have the same tasks in the same order.
    """
    columns = [[each for each in column if not each.lost] for column in zip(*results, strict=True)]
    means = [math.fsum(each.score for each in kept) / max(len(kept), 1) for kept in columns]
    scores: list[float] = []
    for row in results:
        gains = [each.score - mean for each, mean in zip(row, means, strict=True) if not each.lost]
        scores.append(math.fsum(gains) / len(gains) if gains else -math.inf)
    return scores
