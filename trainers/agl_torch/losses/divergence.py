"""Divergence of the trained policy from a reference, per sampled token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_LINEAR_FROM = 10.0
_SLOPE = math.expm1(_LINEAR_FROM)


class _K3(torch.autograd.Function):
    """``exp(d) - d - 1``, continued by its tangent for d > 10.

    The derivative is ``expm1(d)``. Autograd would compute ``exp(d) - 1``, which for small d loses
    all digits in float32.
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
    """Return ``exp(d) - d - 1`` with ``d = reference - logprobs``; never negative.

    Its mean over tokens sampled from the policy is an unbiased estimate of KL(policy || reference)
    (Schulman 2020, "Approximating KL divergence"). For d > 10 the function continues as its
    tangent, so that neither value nor gradient overflows and the gradient does not vanish.
    """
    return _K3.apply(reference.float() - logprobs.float())  # type: ignore[no-any-return]
