"""An advantage and a loss, with their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agl_core.errors import TrainingError
from agl_core.training import Weighting, broadcast, over_trained
from agl_core.types import CallCredit, TrajectoryGroup


class TemplateOptions(BaseModel):
    """Options of the algorithm ``template``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clip: float = Field(default=0.2, ge=0, lt=1)
    """The ratio of new to old probability is clipped this far below and above 1."""
    weighting: Weighting = "token"
    """How tokens share the loss: each token, each call (``sequence``) or each attempt alike."""


class Template:
    """An algorithm: returns minus the group's mean, and the clipped policy gradient."""

    loss = "policy_gradient"
    """Name of a loss of the run's engine."""

    def __init__(self, options: TemplateOptions) -> None:
        self._options = options

    @property
    def loss_options(self) -> Mapping[str, Any]:
        """Options of the loss."""
        return {"clip_low": self._options.clip, "clip_high": self._options.clip, "ratio": "token"}

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """Return each sampled token's advantage and weight in the loss."""
        advantages = over_trained(group, _advantages)
        return broadcast(group, advantages, weighting=self._options.weighting)


def _advantages(group: TrajectoryGroup) -> list[float]:
    return advantages_of([returned.value for returned in group.returns])


def advantages_of(returns: Sequence[float]) -> list[float]:
    """Return one advantage per attempt. Replace the formula, and cite its source.

    ::

        A_i = R_i - mean(R)

    Raises:
        TrainingError: the group is empty.
    """
    if not returns:
        raise TrainingError("A group without attempts has no mean: drop it")
    if len(set(returns)) == 1:
        return [0.0] * len(returns)
    mean = sum(returns) / len(returns)
    return [value - mean for value in returns]
