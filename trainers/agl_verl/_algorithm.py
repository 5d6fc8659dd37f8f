"""The algorithm ``verl``: verl's estimators and policy losses by verl's own names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from agl_core.training import Weighting, broadcast, over_trained
from agl_core.types import CallCredit, TrajectoryGroup
from agl_verl._estimators import (
    DECOUPLED,
    SCALED,
    WHITENED,
    EstimatorName,
    decoupled_advantages,
    group_advantages,
)
from agl_verl._loss import LossOptions, PolicyLossName

__all__ = ["VerlAlgorithm", "VerlAlgorithmOptions"]


class VerlAlgorithmOptions(LossOptions):
    """Options of `VerlAlgorithm`."""

    estimator: EstimatorName = "grpo"
    """verl's name of what makes advantages of a group's returns."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the spread of the group's returns; for the estimators ``grpo*`` and ``gdpo``."""
    gdpo_reward_weights: dict[str, float] = Field(default_factory=dict[str, float])
    """Channel to its weight, 1 where it is left out; for the estimator ``gdpo``."""
    policy_loss: PolicyLossName = "vanilla"
    """verl's name of the loss."""
    weighting: Weighting = "attempt"
    """How tokens share the loss: each token, each call (``sequence``) or each attempt alike."""

    @property
    def loss_mode(self) -> str:
        return self.policy_loss

    @model_validator(mode="after")
    def _read_by_the_estimator(self) -> VerlAlgorithmOptions:
        if "norm_adv_by_std_in_grpo" in self.model_fields_set and self.estimator not in SCALED:
            raise ValueError(
                f"estimator {self.estimator!r} does not read norm_adv_by_std_in_grpo; "
                f"{', '.join(SCALED)} do"
            )
        if self.gdpo_reward_weights and self.estimator != DECOUPLED:
            raise ValueError(
                f"estimator {self.estimator!r} does not read gdpo_reward_weights: choose "
                f"{DECOUPLED!r}, or weigh channels where rewards are configured"
            )
        for channel, weight in self.gdpo_reward_weights.items():
            if not math.isfinite(weight):
                raise ValueError(f"gdpo_reward_weights.{channel} is {weight}: it must be finite")
        return self


class VerlAlgorithm:
    """An advantage estimator and a loss of verl; implements `agl_core.interfaces.Algorithm`.

    verl's estimator gets one row per attempt, with the rewards of the attempt and the agent.
    `agl_core.training.advantages.broadcast` adds the rewards of runs, calls and choices.
    """

    engine = "verl"
    """The engine of a run that does not name one."""
    loss = "policy_gradient"

    def __init__(self, options: VerlAlgorithmOptions) -> None:
        self.options = options

    @property
    def loss_options(self) -> Mapping[str, Any]:
        given = self.options.model_fields_set & set(LossOptions.model_fields)
        return {
            "policy_loss": self.options.policy_loss,
            **({"whiten": True} if self.options.estimator in WHITENED else {}),
            **{name: getattr(self.options, name) for name in sorted(given)},
        }

    def credit(self, group: TrajectoryGroup) -> list[CallCredit]:
        """See `agl_core.interfaces.Algorithm.credit`."""
        advantages = over_trained(group, self._advantages)
        return broadcast(group, advantages, weighting=self.options.weighting)

    def _advantages(self, group: TrajectoryGroup) -> list[float]:
        options, lengths = self.options, _lengths(group)
        scale = options.norm_adv_by_std_in_grpo
        if options.estimator == DECOUPLED:
            weights = options.gdpo_reward_weights
            return decoupled_advantages(group.returns, lengths, weights=weights, scale=scale)
        returns = [returned.value for returned in group.returns]
        return group_advantages(options.estimator, returns, lengths, scale=scale)


def _lengths(group: TrajectoryGroup) -> list[int]:
    """Return the number of sampled tokens in each attempt's continued calls."""
    return [
        sum(len(call.response_ids) for path in paths for call in path.calls if call.continued)
        for paths in group.trajectories
    ]
