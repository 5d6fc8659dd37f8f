"""What a loss gets and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Sampled tokens of whole sequences, one entry each, all (S,)."""

    logprobs: Tensor
    """Log-probabilities under the weights in training, with gradient."""
    behaviour: Tensor
    """The same when sampled."""
    advantages: Tensor
    weights: Tensor
    """Share in the loss; 0 trains nothing."""
    sequences: Tensor
    """Index of the sequence each token belongs to, 0, 1, ... within these terms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """A loss per token; the trainer weighs, sums and divides."""

    losses: Tensor
    """(S,) with gradient."""
    means: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Metrics per token (S,), reported as their weighted mean."""
    maxima: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Metrics per token (S,), reported as their largest."""


class Loss(Protocol):
    """A loss that a trainer can be given by name."""

    def __call__(self, terms: Terms) -> LossOutput: ...
