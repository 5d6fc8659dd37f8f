"""The algorithm ``verl``: verl's estimators and policy losses by verl's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import model_validator

from agl_core.training.advantages import Weighting, broadcast
from agl_core.types import CallCredit, TrajectoryGroup
from agl_verl.estimators import SCALED, WHITENED, EstimatorName, group_advantages
from agl_verl.loss import LossOptions, PolicyLossName

__all__ = ["VerlAlgorithm", "VerlAlgorithmOptions"]


class VerlAlgorithmOptions(LossOptions):
    """Options of `VerlAlgorithm`."""

    estimator: EstimatorName = "grpo"
    """verl's name of what makes advantages of a group's returns."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the spread of the group's returns; for the estimators ``grpo*``."""
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
        return self


class VerlAlgorithm:
    """verl's choice of an advantage and a loss; fulfils `agl_core.interfaces.Algorithm`.

    verl's estimator sees one row per attempt, with what the attempt and the agent earned in it.
    Rewards of runs, calls and choices are added by `agl_core.training.advantages.broadcast`.
    """

    engine = "verl"
    """Chosen where a run names none."""
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
        options = self.options
        advantages = group_advantages(
            options.estimator,
            [returned.value for returned in group.returns],
            _lengths(group),
            scale=options.norm_adv_by_std_in_grpo,
        )
        return broadcast(group, advantages, weighting=options.weighting)


def _lengths(group: TrajectoryGroup) -> list[int]:
    """Sampled tokens that each attempt went on from."""
    return [
        sum(len(call.response_ids) for path in paths for call in path.calls if call.continued)
        for paths in group.trajectories
    ]
