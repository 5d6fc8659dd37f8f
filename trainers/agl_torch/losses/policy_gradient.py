"""The clipped policy gradient."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from agl_torch.losses._base import LossOutput, Terms

_LARGEST_LOG_RATIO = 20.0


class ClipOptions(BaseModel):
    """How far a token's probability may move before it stops to count."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    ratio: Literal["token", "sequence"] = "token"
    """One ratio per token, or the geometric mean over each sequence's trained tokens."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio is clipped below ``1 - clip_low``."""
    clip_high: float = Field(default=0.2, ge=0)
    """And above ``1 + clip_high``."""


class PolicyGradient:
    """``-min(r A, clip(r, 1 - low, 1 + high) A)``, ``r`` being new / old probability.

    Schulman et al. 2017, arXiv:1707.06347; with ratios per sequence, Zheng et al. 2025,
    arXiv:2507.18071. Under the weights that sampled the tokens, every ratio is 1 and the gradient
    is that of REINFORCE.
    """

    def __init__(self, options: ClipOptions) -> None:
        self._options = options

    def __call__(self, terms: Terms) -> LossOutput:
        options = self._options
        log_ratio = terms.logprobs - terms.behaviour
        if options.ratio == "sequence":
            log_ratio = _sequence_means(log_ratio, terms)
        ratio = log_ratio.clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
        clipped = ratio.clamp(1 - options.clip_low, 1 + options.clip_high)
        free, bounded = ratio * terms.advantages, clipped * terms.advantages
        measured = ratio.detach()
        return LossOutput(
            losses=-torch.minimum(free, bounded),
            means={"ratio_mean": measured, "clip_fraction": (bounded < free).float()},
            maxima={"ratio_max": measured},
        )


def _sequence_means(values: Tensor, terms: Terms) -> Tensor:
    """Return, for every token, the mean over its choice's trained tokens."""
    count = int(terms.sequences.max()) + 1 if len(values) else 0
    trained = (terms.weights > 0).to(values.dtype)
    sums = values.new_zeros(count).index_add(0, terms.sequences, values * trained)
    sizes = values.new_zeros(count).index_add(0, terms.sequences, trained)
    return (sums / sizes.clamp(min=1.0))[terms.sequences]
