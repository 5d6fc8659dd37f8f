"""Conversion of groups to one batch per policy."""

from __future__ import annotations

import hashlib
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence

from agl_core.errors import TrainingError
from agl_core.interfaces import Algorithm, CreditedCall, ForestBuilder
from agl_core.types import Batch, CallCredit, Losses, TrajectoryGroup, Triplet


class Batcher:
    """The builder of batches: calls the algorithm for each group and builds the engine's batches.

    A group whose advantages are all 0 stays in the batch. The loss is divided by the sum of the
    weights, so without such groups the step size would grow when few groups have a signal, and a
    divergence term still applies to them. They are counted as ``groups_without_signal``.
    """

    def __init__(self, algorithm: Algorithm, forest: ForestBuilder) -> None:
        self._algorithm = algorithm
        self._forest = forest

    def build(self, groups: Sequence[TrajectoryGroup], *, step: int) -> tuple[list[Batch], Losses]:
        """Build one batch per policy that has a token with a weight, ordered by policy name.

        Raises:
            TrainingError: the algorithm's credits do not match the group.
        """
        losses = Losses()
        credited: dict[str, list[CreditedCall]] = defaultdict(list)
        counts: dict[str, int] = defaultdict(int)
        for group in groups:
            calls = self._credit(group, index=counts[group.policy])
            counts[group.policy] += 1
            credited[group.policy].extend(calls)
            if not any(any(call.credit.advantages) for call in calls):
                losses.add("groups_without_signal")
        batches: list[Batch] = []
        for policy in sorted(credited):
            if any(any(call.credit.weights) for call in credited[policy]):
                batches.append(self._forest(credited[policy], policy=policy, step=step))
            else:
                losses.add("policies_without_weight")
        return batches, losses

    def _credit(self, group: TrajectoryGroup, *, index: int) -> list[CreditedCall]:
        triplets: dict[tuple[str, int], Triplet] = {
            (triplet.call_id, triplet.choice): triplet
            for trajectories in group.trajectories
            for trajectory in trajectories
            for triplet in trajectory.calls
        }
        calls: list[CreditedCall] = []
        for credit in self._algorithm.credit(group):
            triplet = triplets.pop((credit.call_id, credit.choice), None)
            if triplet is None:
                raise TrainingError(
                    f"The algorithm credited choice {credit.choice} of call {credit.call_id!r} "
                    f"in group {group.group_id!r}, which is not in it or was credited already"
                )
            _check_finite(credit, group)
            calls.append(CreditedCall(triplet=triplet, credit=credit, group=index))
        return calls


def _check_finite(credit: CallCredit, group: TrajectoryGroup) -> None:
    if all(map(math.isfinite, credit.advantages)) and all(
        weight >= 0 and math.isfinite(weight) for weight in credit.weights
    ):
        return
    raise TrainingError(
        f"The algorithm gave call {credit.call_id!r} of group {group.group_id!r} an advantage that "
        f"is not finite, or a weight that is negative or not finite"
    )


def group_minibatches(groups: Iterable[int], count: int, *, order: str) -> list[list[int]]:
    """Split groups into up to `count` minibatches, whose numbers of groups differ by at most one.

    All engines use this function, so the same seed gives the same minibatches in every engine.

    Args:
        groups: Indices of groups; duplicates are ignored.
        count: Number of minibatches; if there are fewer groups, each group is a minibatch.
        order: Seed for shuffling the groups; one minibatch has its groups in ascending order.
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
