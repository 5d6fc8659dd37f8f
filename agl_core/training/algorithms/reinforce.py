"""REINFORCE: returns as advantages and the clipped policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_core.training.advantages import (
    Baseline,
    broadcast,
    over_trained,
    reinforce_advantages,
)
from agl_core.training.algorithms._options import PolicyGradientOptions
from agl_core.types import CallCredit, TrajectoryGroup


class ReinforceOptions(PolicyGradientOptions):
    """Options of `Reinforce`."""

    baseline: Baseline = "none"
    """What is taken off the returns: nothing, or the group's mean."""


class Reinforce:
    """The plain policy gradient; implements `agl_core.interfaces.Algorithm`."""

    loss = "policy_gradient"

    def __init__(self, options: ReinforceOptions) -> None:
        self.options = options

    @property
    def loss_options(self) -> Mapping[str, Any]:
        return self.options.loss_options

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """See `agl_core.interfaces.Algorithm.credit`."""
        advantages = over_trained(group, self._advantages)
        return broadcast(group, advantages, weighting=self.options.weighting)

    def _advantages(self, group: TrajectoryGroup) -> list[float]:
        returns = [returned.value for returned in group.returns]
        return reinforce_advantages(returns, baseline=self.options.baseline)
