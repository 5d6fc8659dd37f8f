"""Credit of imitation: weights alone count."""

from __future__ import annotations

import msgspec

from agl_core.training import Weighting, broadcast
from agl_core.types import CallCredit, TrajectoryGroup

__all__ = ["imitated"]


def imitated(group: TrajectoryGroup, *, weighting: Weighting) -> list[CallCredit]:
    """Return advantage 1 for every token, with its weight, of the choices that may be trained.

    These are the choices that a conversation continued and those that a reward names.

    Raises:
        TrainingError: the group is empty.
    """
    returns = [msgspec.structs.replace(each, runs={}, calls={}) for each in group.returns]
    plain = msgspec.structs.replace(group, returns=returns)
    credits_ = broadcast(plain, [0.0] * len(returns), weighting=weighting)
    return [
        msgspec.structs.replace(each, advantages=[1.0] * len(each.advantages)) for each in credits_
    ]
