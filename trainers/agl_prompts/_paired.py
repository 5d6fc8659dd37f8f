"""Comparison of candidates on the same tasks."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from typing import Final

from agl_prompts._seen import Seen

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
    differences = [b.score - a.score for a, b in pairs if not (a.lost or b.lost)]
    sizes = [abs(each) for each in differences if each]
    reached = math.fsum(differences) - _TOLERANCE
    if not sizes:
        return 1.0
    if len(sizes) <= _EXACT:
        signs = itertools.product((-1, 1), repeat=len(sizes))
        sums = [sum(map(float.__mul__, sizes, map(float, each))) for each in signs]
        return sum(each >= reached for each in sums) / len(sums)
    rng = random.Random(0)  # noqa: S311 (a test, not a secret)
    hits = sum(
        sum(size if rng.getrandbits(1) else -size for size in sizes) >= reached
        for _ in range(_DRAWS)
    )
    return (hits + 1) / (_DRAWS + 1)


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
