"""Advantages of attempts relative to their group, and of sampled tokens.

Each estimator of an attempt's advantage has a module. The module `broadcast` has the credit rule
that assigns advantages to tokens, which all estimators share.
"""

from agl_core.training.advantages.broadcast import Weighting, broadcast, over_trained
from agl_core.training.advantages.grpo import grpo_advantages
from agl_core.training.advantages.reinforce import Baseline, reinforce_advantages
from agl_core.training.advantages.rloo import rloo_advantages

__all__ = [
    "Baseline",
    "Weighting",
    "broadcast",
    "grpo_advantages",
    "over_trained",
    "reinforce_advantages",
    "rloo_advantages",
]
