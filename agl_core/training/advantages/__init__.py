"""Advantages: what an attempt earned against its group, then per sampled token.

One module per estimator of the attempt's advantage; `broadcast` holds the credit rule that all
of them share.
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
