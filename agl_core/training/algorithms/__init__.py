"""Algorithms: each one combines an advantage estimator with a loss and validates its options."""

from agl_core.training.algorithms.grpo import GRPO, GRPOOptions
from agl_core.training.algorithms.reinforce import Reinforce, ReinforceOptions
from agl_core.training.algorithms.rloo import RLOO, RLOOOptions

__all__ = ["GRPO", "RLOO", "GRPOOptions", "RLOOOptions", "Reinforce", "ReinforceOptions"]
