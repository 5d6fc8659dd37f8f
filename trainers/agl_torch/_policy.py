"""Loaded policies: weights, shared where possible, with tokenizer and endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from agl_core.types import Policy
from agl_torch._forward import CausalModel
from agl_torch._lora import FrozenWeights, LoraWeights, SharedBase
from agl_torch._weights import FullWeights, Weights
from agl_torch.adapters import load_weights
from agl_torch.backend import Endpoint
from agl_torch.chat.template import ChatTemplate
from agl_torch.chat.text import Vocabulary
from agl_torch.models import context_length, end_tokens, load_tokenizer
from agl_torch.options import TorchOptions


@dataclass(slots=True)
class LoadedPolicy:
    """One policy, ready to serve."""

    policy: Policy
    weights: Weights
    reference: CausalModel | None
    """The initial weights, if the loss has a KL term against them."""
    tokenizer: Any
    endpoint: Endpoint
    ends: frozenset[int]
    """Ids of the tokens that end an answer."""


class PolicyLoader:
    """Loads policies; frozen policies and adapters share one copy of their base model."""

    def __init__(
        self,
        options: TorchOptions,
        *,
        device: torch.device,
        dtype: torch.dtype,
        seed: int,
        reference: bool,
    ) -> None:
        """Create a loader.

        Args:
            dtype: Dtype of the served weights; trained weights are always float32.
            seed: Seed of new adapters.
            reference: Keep the initial weights of trainable policies for the KL term.
        """
        self._options = options
        self._device = device
        self._dtype = dtype
        self._seed = seed
        self._reference = reference
        self._bases: dict[str, SharedBase] = {}

    def load(self, policies: Sequence[Policy]) -> dict[str, LoadedPolicy]:
        """Load every policy.

        Raises:
            ConfigError: a model or tokenizer cannot be loaded or has no chat template.
        """
        lora = self._options.lora
        for policy in policies:
            if policy.trainable and lora is not None:
                self._base(policy.model).attach(policy.name, lora, seed=self._seed)
        return {policy.name: self._load(policy) for policy in policies}

    def _load(self, policy: Policy) -> LoadedPolicy:
        tokenizer = load_tokenizer(policy.model)
        template = ChatTemplate(tokenizer, source=policy.model)
        weights = self._weights(policy)
        reference = None
        if policy.trainable and self._reference:
            reference = self._base(policy.model).without_adapter()
        config = weights.model.config
        endpoint = Endpoint(
            policy=policy.name,
            template=template,
            vocabulary=Vocabulary(tokenizer),
            max_model_len=context_length(config, wanted=self._options.max_model_len),
            max_new_tokens=self._options.max_new_tokens,
        )
        return LoadedPolicy(
            policy=policy,
            weights=weights,
            reference=reference,
            tokenizer=tokenizer,
            endpoint=endpoint,
            ends=end_tokens(weights.model, tokenizer),
        )

    def _weights(self, policy: Policy) -> Weights:
        if not policy.trainable:
            return FrozenWeights(self._base(policy.model))
        if self._options.lora is not None:
            return LoraWeights(self._base(policy.model), policy.name)
        trained = self._model(policy.model, torch.float32)
        served = None if self._dtype == torch.float32 else self._model(policy.model, self._dtype)
        return FullWeights(trained, served)

    def _base(self, source: str) -> SharedBase:
        if source not in self._bases:
            self._bases[source] = SharedBase(self._model(source, self._dtype), source)
        return self._bases[source]

    def _model(self, source: str, dtype: torch.dtype) -> Any:
        return load_weights(source, dtype=dtype, device=self._device)
