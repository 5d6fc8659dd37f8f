"""Imitation of the sampled tokens."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from agl_torch.losses.base import LossOutput, Terms


class CrossEntropyOptions(BaseModel):
    """The loss has none: the weights say what is imitated, and how much."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CrossEntropy:
    """``-log p`` of every token, whatever its advantage."""

    def __init__(self, options: CrossEntropyOptions) -> None:
        self._options = options

    def __call__(self, terms: Terms) -> LossOutput:
        return LossOutput(losses=-terms.logprobs)
