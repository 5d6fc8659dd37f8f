"""Divergence of the trained policy from a reference, per sampled token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_LINEAR_FROM = 10.0
_SLOPE = math.expm1(_LINEAR_FROM)


class _K3(torch.autograd.Function):
    """``exp(d) - d - 1``, beyond d = 10 its tangent there.

    Its derivative is ``expm1(d)``. Autograd would take it as ``exp(d) - 1``, which in 32-bit floats
    keeps no digit of a small d.
    """

    @staticmethod
    def forward(ctx: Any, difference: Tensor) -> Tensor:
        ctx.save_for_backward(difference)
        near = difference.clamp(max=_LINEAR_FROM)
        return torch.expm1(near) - near + _SLOPE * (difference - near)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (difference,) = ctx.saved_tensors
        return grads[0] * torch.expm1(difference.clamp(max=_LINEAR_FROM))


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """``exp(d) - d - 1`` with ``d = reference - logprobs``, never negative.

    Its mean over tokens of the policy estimates KL(policy || reference) without bias (Schulman
    2020, "Approximating KL divergence"). Beyond d = 10 the exponential continues as its tangent, so
    that neither it nor its gradient overflows and both still pull the policy back.
    """
    return _K3.apply(reference.float() - logprobs.float())  # type: ignore[no-any-return]
