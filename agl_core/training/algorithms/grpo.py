"""GRPO: group-relative advantages and the clipped policy gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from agl_core.training.advantages import broadcast, grpo_advantages, over_trained
from agl_core.training.algorithms._options import PolicyGradientOptions
from agl_core.types import CallCredit, TrajectoryGroup


class GRPOOptions(PolicyGradientOptions):
    """Options of `GRPO`."""

    scale: bool = True
    """Divide by the spread of the group's returns."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the spread."""


class GRPO:
    """Group relative policy optimisation; implements `agl_core.interfaces.Algorithm`."""

    loss = "policy_gradient"

    def __init__(self, options: GRPOOptions) -> None:
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
        return grpo_advantages(returns, scale=self.options.scale, eps=self.options.eps)
