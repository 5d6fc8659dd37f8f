"""Divergence of the trained policy from a reference, per sampled token."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LINEAR_FROM = 10.0


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``exp(d) - d - 1`` with ``d = reference - logprobs``, never negative.

    Its mean over tokens of the policy estimates KL(policy || reference) without bias (Schulman
    2020, "Approximating KL divergence"). Beyond d = 10 the exponential goes on as its tangent, so
    that neither it nor its gradient overflows and both still pull the policy back.
    """
    difference = reference.float() - logprobs.float()
    near = difference.clamp(max=_LINEAR_FROM)
    return torch.expm1(near) + math.exp(_LINEAR_FROM) * (difference - near) - difference
