"""Algorithms: each one combines an advantage estimator with a loss and validates its options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from agl_core.training.advantages import (
    Baseline,
    Weighting,
    broadcast,
    grpo_advantages,
    over_trained,
    reinforce_advantages,
    rloo_advantages,
)
from agl_core.types import CallCredit, TrajectoryGroup


class PolicyGradientOptions(BaseModel):
    """Options of the loss ``policy_gradient``: clipping, probability ratio and token weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio of new to old probability is clipped below ``1 - clip_low``."""
    clip_high: float = Field(default=0.2, ge=0)
    """And above ``1 + clip_high``; 0.28 lets unlikely tokens become more likely. Both matter only
    once a batch has changed the weights it is trained with: minibatches, epochs, stale calls."""
    ratio: Literal["token", "sequence"] = "token"
    """One ratio per token, or the geometric mean over each call's tokens."""
    weighting: Weighting = "token"
    """How tokens share the loss: each token, each call (``sequence``) or each attempt alike."""


class GRPOOptions(PolicyGradientOptions):
    """Options of `GRPO`."""

    scale: bool = True
    """Divide by the spread of the group's returns."""
    eps: float = Field(default=1e-6, gt=0)
    """Added to the spread."""


class ReinforceOptions(PolicyGradientOptions):
    """Options of `Reinforce`."""

    baseline: Baseline = "none"
    """What is taken off the returns: nothing, or the group's mean."""


class RLOOOptions(PolicyGradientOptions):
    """Options of `RLOO`."""


_Options = TypeVar("_Options", bound=PolicyGradientOptions)


class _PolicyGradient(ABC, Generic[_Options]):
    """The clipped policy gradient; implements `agl_core.interfaces.Algorithm`."""

    loss = "policy_gradient"

    def __init__(self, options: _Options) -> None:
        self.options = options

    @property
    def loss_options(self) -> Mapping[str, Any]:
        return self.options.model_dump(include={"clip_low", "clip_high", "ratio"})

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """See `agl_core.interfaces.Algorithm.credit`."""
        advantages = over_trained(
            group, lambda trained: self.estimate([each.value for each in trained.returns])
        )
        return broadcast(group, advantages, weighting=self.options.weighting)

    @abstractmethod
    def estimate(self, returns: Sequence[float]) -> list[float]:
        """Return one advantage per attempt of a group."""


class GRPO(_PolicyGradient[GRPOOptions]):
    """Group relative policy optimisation."""

    def estimate(self, returns: Sequence[float]) -> list[float]:
        return grpo_advantages(returns, scale=self.options.scale, eps=self.options.eps)


class Reinforce(_PolicyGradient[ReinforceOptions]):
    """The plain policy gradient, with or without the group's mean as a baseline."""

    def estimate(self, returns: Sequence[float]) -> list[float]:
        return reinforce_advantages(returns, baseline=self.options.baseline)


class RLOO(_PolicyGradient[RLOOOptions]):
    """REINFORCE with a leave-one-out baseline."""

    def estimate(self, returns: Sequence[float]) -> list[float]:
        return rloo_advantages(returns)
