"""Cross-entropy of the sampled tokens."""

from __future__ import annotations

from agl_torch.losses._base import LossOutput, Terms


class CrossEntropy:
    """``-log p`` of every token. Ignores advantages; tokens with weight 0 are not imitated."""

    def __call__(self, terms: Terms) -> LossOutput:
        return LossOutput(losses=-terms.logprobs)
