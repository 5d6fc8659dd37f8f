"""Options that all policy-gradient algorithms share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from agl_core.training.advantages import Weighting


class PolicyGradientOptions(BaseModel):
    """Options of the loss ``policy_gradient``: clipping, probability ratio and token weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio of new to old probability is clipped below ``1 - clip_low``."""
    clip_high: float = Field(default=0.2, ge=0)
    """And above ``1 + clip_high``; 0.28 leaves unlikely tokens more room to grow. Both matter only
    once a batch has changed the weights it is trained with: minibatches, epochs, stale calls."""
    ratio: Literal["token", "sequence"] = "token"
    """One ratio per token, or the geometric mean over each call's tokens."""
    weighting: Weighting = "token"
    """How tokens share the loss: each token, each call (``sequence``) or each attempt alike."""

    @property
    def loss_options(self) -> Mapping[str, Any]:
        return {"clip_low": self.clip_low, "clip_high": self.clip_high, "ratio": self.ratio}
