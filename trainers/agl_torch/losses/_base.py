"""Input and output of a loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Sampled tokens of complete choices; every tensor is (S,)."""

    logprobs: Tensor
    """Log-probabilities under the trained weights, with gradient."""
    behaviour: Tensor
    """Log-probabilities recorded at sampling."""
    advantages: Tensor
    weights: Tensor
    """Weight of each token in the loss; 0 excludes it."""
    sequences: Tensor
    """Index of each token's choice, numbered 0, 1, ... within these terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """A loss per token; the trainer computes the weighted mean."""

    losses: Tensor
    """(S,) with gradient."""
    means: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Metrics per token (S,); the weighted mean is reported."""
    maxima: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Metrics per token (S,); the maximum is reported."""


class Loss(Protocol):
    """A loss that is registered by name."""

    def __call__(self, terms: Terms) -> LossOutput: ...
