"""The loss that the algorithms of agl-core request, with its options."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PolicyGradientOptions(BaseModel):
    """Options of the loss: those of an algorithm's ``loss_options``."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    ratio: Literal["token"] = "token"
    """One ratio per token. Engines that know whole sequences also take ``sequence``."""
    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio is clipped below ``1 - clip_low``."""
    clip_high: float = Field(default=0.2, ge=0)
    """And above ``1 + clip_high``."""


class PolicyGradient:
    """``-min(r A, clip(r, 1 - low, 1 + high) A)``, ``r`` being new / old probability.

    Schulman et al. 2017, arXiv:1707.06347.
    """

    def __init__(self, options: PolicyGradientOptions) -> None:
        self._options = options

    def slope(self, advantage: float, ratio: float) -> float:
        """Return the factor of the gradient of a token's log-probability."""
        low, high = 1 - self._options.clip_low, 1 + self._options.clip_high
        clipped = ratio > high if advantage > 0 else ratio < low
        return 0.0 if clipped else ratio * advantage
