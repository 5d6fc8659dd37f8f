"""RLOO: leave-one-out advantages and the clipped policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_core.training.advantages import broadcast, over_trained, rloo_advantages
from agl_core.training.algorithms._options import PolicyGradientOptions
from agl_core.types import CallCredit, TrajectoryGroup


class RLOOOptions(PolicyGradientOptions):
    """Options of `RLOO`."""


class RLOO:
    """REINFORCE with a leave-one-out baseline; implements `agl_core.interfaces.Algorithm`."""

    loss = "policy_gradient"

    def __init__(self, options: RLOOOptions) -> None:
        self.options = options

    @property
    def loss_options(self) -> Mapping[str, Any]:
        return self.options.loss_options

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """See `agl_core.interfaces.Algorithm.credit`."""
        advantages = over_trained(group, _advantages)
        return broadcast(group, advantages, weighting=self.options.weighting)


def _advantages(group: TrajectoryGroup) -> list[float]:
    return rloo_advantages([returned.value for returned in group.returns])
