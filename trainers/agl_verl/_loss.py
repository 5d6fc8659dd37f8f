"""Selection and options of verl's policy losses.

Every loss term has a weight, which verl gets per token as ``rollout_is_weights``. verl's losses use
the weights as follows:

==================================  =======================================================
vanilla, dppo_tv, dppo_kl, cispo,   the token's loss times the weight
gpg, dro, gspo
sapo                                the same, always averaged by seq-mean-token-mean
clip_cov, kl_cov                    the same; the tokens they exclude depend, as always in
                                    verl, on the other tokens of the micro-batch
geo_mean                            one weight per row, the geometric mean: not usable
bypass_mode                         ignores the weights: not usable
==================================  =======================================================
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agl_core.types import Batch
from agl_verl._whitening import whitened

__all__ = [
    "AggMode",
    "CrossEntropy",
    "LossOptions",
    "PolicyLoss",
    "PolicyLossName",
    "PolicyLossOptions",
]

AggMode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]

_NEVER = 1e9
"""A bound that no ratio reaches: verl's losses clamp the log ratio to at most 20."""

_CLIP = ("clip_low", "clip_high")
_COV = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub")
_READ: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vanilla": (*_CLIP, "clip_ratio_c"),
        "dppo_tv": (*_CLIP, "clip_ratio_c"),
        "dppo_kl": (*_CLIP, "clip_ratio_c"),
        "gspo": _CLIP,
        "sapo": ("tau_pos", "tau_neg"),
        "gpg": (),
        "clip_cov": (*_CLIP, *_COV),
        "kl_cov": ("kl_cov_ratio", "ppo_kl_coef"),
        "dro": ("dro_beta",),
        "cispo": _CLIP,
    }
)
"""Policy losses that apply weights per token exactly, and the options that each reads."""

_UNUSABLE: Mapping[str, str] = MappingProxyType(
    {
        "geo_mean": "takes one weight per row, the geometric mean of its tokens', and averages "
        "over the rows of a micro-batch",
        "bypass_mode": "takes no weights, but computes its own",
    }
)


def _usable(name: str) -> str:
    if name not in _READ:
        why = _UNUSABLE.get(name, "is not one of verl's")
        raise ValueError(
            f"policy loss {name!r} {why}. Every token's loss has a weight of its own here, so "
            f"these can be used: {', '.join(_READ)}"
        )
    return name


PolicyLossName = Annotated[str, AfterValidator(_usable)]
"""Name of a policy loss of verl that applies weights per token."""

_OF_POLICY_LOSS = (*_COV, "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
"""Options that verl reads from ``actor.policy_loss``; it reads the others from ``actor``."""

_CALLS_APART = ("gspo",)
"""Losses with one ratio per row; each row must then be one choice."""


class LossOptions(BaseModel):
    """Options of verl's policy losses. Each loss reads some of them and refuses the others."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    clip_low: float = Field(default=0.2, ge=0, lt=1)
    """The ratio is clipped below ``1 - clip_low``; for ``dppo_*`` the largest divergence."""
    clip_high: float = Field(default=0.2, ge=0)
    """And above ``1 + clip_high``; for ``dppo_*`` the largest divergence."""
    clip_ratio_c: float | None = Field(default=None, gt=1)
    """Largest ratio that counts where the advantage is negative (``vanilla``), or at all
    (``dppo_*``). None: what verl takes, 3."""
    tau_pos: float = Field(default=1.0, gt=0)
    """Steepness of the gate of ``sapo`` for positive advantages."""
    tau_neg: float = Field(default=1.05, gt=0)
    """And for others."""
    clip_cov_ratio: float = Field(default=0.0002, gt=0)
    """Share of the tokens that ``clip_cov`` leaves out of a micro-batch."""
    clip_cov_lb: float = 1.0
    """Least covariance of a token that ``clip_cov`` may leave out."""
    clip_cov_ub: float = 5.0
    """And the largest."""
    kl_cov_ratio: float = Field(default=0.0002, gt=0)
    """Share of the tokens of a micro-batch that ``kl_cov`` holds back."""
    ppo_kl_coef: float = Field(default=0.1, ge=0)
    """How strongly ``kl_cov`` does."""
    dro_beta: float | None = Field(default=None, gt=0)
    """Weight of the quadratic penalty of ``dro``, which needs it."""
    loss_agg_mode: AggMode | None = None
    """How verl averages a divergence from the reference; the policy loss is the weighted mean
    over tokens, whatever this is. None: over tokens, but for ``sapo``, which knows only the mean
    over rows of their tokens' means."""

    @property
    def loss_mode(self) -> str:
        """Name of the loss in verl."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _read_by_the_loss(self) -> LossOptions:
        name = self.loss_mode
        known = {option for options in _READ.values() for option in options}
        unread = sorted((self.model_fields_set & known) - set(_READ[name]))
        if unread:
            raise ValueError(
                f"policy_loss {name!r} does not read {', '.join(unread)}; it reads "
                f"{', '.join(_READ[name]) or 'no options'}"
            )
        if name == "dro" and self.dro_beta is None:
            raise ValueError("policy_loss 'dro' needs dro_beta, a number above 0")
        if name == "sapo" and self.loss_agg_mode not in (None, "seq-mean-token-mean"):
            raise ValueError("policy_loss 'sapo' averages by seq-mean-token-mean alone")
        return self


class PolicyLossOptions(LossOptions):
    """Options of `PolicyLoss`, from an algorithm of agl-core or from one that knows verl."""

    policy_loss: PolicyLossName | None = None
    """verl's name of the loss. None: by `ratio`, and without `clip_ratio_c`."""
    ratio: Literal["token", "sequence"] | None = None
    """Without `policy_loss`: one ratio per token (``vanilla``), or the geometric mean over each
    choice's tokens (``gspo``)."""
    whiten: bool = False
    """Bring the advantages of a batch to mean 0 and spread 1 before it is divided; set by an
    algorithm whose estimator does so."""

    @property
    def loss_mode(self) -> str:
        if self.policy_loss is not None:
            return self.policy_loss
        return "gspo" if self.ratio == "sequence" else "vanilla"

    @model_validator(mode="after")
    def _one_name(self) -> PolicyLossOptions:
        if self.policy_loss is not None and self.ratio is not None:
            raise ValueError("policy_loss names a loss, and so does ratio: set one of them")
        return self


class PolicyLoss:
    """The options of verl's actor, and the requirements on rows, of one policy loss."""

    def __init__(self, options: PolicyLossOptions) -> None:
        self.options = options

    def prepared(self, batch: Batch) -> Batch:
        """Return the batch with its advantages whitened if the options say so."""
        return whitened(batch) if self.options.whiten else batch

    @property
    def agg_mode(self) -> AggMode:
        """Argument of `agl_verl.convert.tensors_of`."""
        if self.options.loss_mode == "sapo":
            return "seq-mean-token-mean"
        return self.options.loss_agg_mode or "token-mean"

    @property
    def row_per_choice(self) -> bool:
        """Whether the loss treats each row as one choice, so that rows must not be merged."""
        return self.options.loss_mode in _CALLS_APART

    @property
    def actor(self) -> dict[str, Any]:
        """Keys of verl's ``actor_rollout_ref.actor``, nested as in verl's configuration."""
        options = self.options
        read = _READ[options.loss_mode]
        actor: dict[str, Any] = {"loss_agg_mode": self.agg_mode}
        inner: dict[str, Any] = {"loss_mode": options.loss_mode}
        if "clip_low" in read:
            actor["clip_ratio"] = options.clip_low
            actor["clip_ratio_low"] = options.clip_low
            actor["clip_ratio_high"] = options.clip_high
        if "clip_ratio_c" in read:
            actor["clip_ratio_c"] = self._largest_ratio
        for name in read:
            if name in _OF_POLICY_LOSS:
                inner[name] = getattr(options, name)
            elif name in ("tau_pos", "tau_neg"):
                actor[name] = getattr(options, name)
        return {**actor, "policy_loss": inner}

    @property
    def _largest_ratio(self) -> float:
        if self.options.clip_ratio_c is not None:
            return self.options.clip_ratio_c
        return 3.0 if self.options.policy_loss is not None else _NEVER


class CrossEntropy(PolicyLoss):
    """``-log p`` of every token, times its weight; advantages are not used.

    It is verl's ``gpg``, ``-A log p`` (Chu et al. 2025, arXiv:2504.02546), with every A = 1.
    """

    def __init__(self) -> None:
        super().__init__(PolicyLossOptions(policy_loss="gpg"))

    def prepared(self, batch: Batch) -> Batch:
        """Return the batch with advantage 1 for every token."""
        return dataclasses.replace(batch, advantages=array("f", [1.0]) * len(batch.targets))
