"""The groups of a batch dealt to optimizer steps."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable


def group_minibatches(groups: Iterable[int], count: int, *, order: str) -> list[list[int]]:
    """Up to `count` minibatches of whole groups, whose numbers of groups differ by one at most.

    Every engine deals them this way, so one seed gives the same minibatches everywhere.

    Args:
        groups: Indices of groups; repeats count once.
        count: Minibatches that are wanted; fewer groups than that give one each.
        order: Seed of the order of the groups; with one minibatch they stay in ascending order.
    """
    ordered = sorted(set(groups))
    if count > 1:
        seed = hashlib.sha256(order.encode()).digest()
        random.Random(seed).shuffle(ordered)  # noqa: S311
    parts = min(count, len(ordered))
    if parts == 0:
        return []
    size, larger = divmod(len(ordered), parts)
    ends = [(part + 1) * size + min(part + 1, larger) for part in range(parts)]
    return [ordered[start:end] for start, end in zip([0, *ends], ends, strict=False)]
