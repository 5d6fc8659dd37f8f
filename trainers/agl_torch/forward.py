"""One way to call any Hugging Face causal language model, for serving and for training alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from agl_core.errors import ConfigError

_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Rows:
    """What a model reads: R rows of T tokens that look at K keys (cached ones included)."""

    tokens: Tensor
    """(R, T)"""
    positions: Tensor
    """(R, T) position ids."""
    mask: Tensor
    """(R, 1, T, K) True where a token sees a key."""
    key_positions: Tensor
    """(R, K) or (1, K) position ids of the keys, for models with a sliding window."""


class CausalModel:
    """A causal language model whose output head runs only where logits are wanted.

    The head's input is narrowed by a hook, so that whatever a model does to its logits afterwards
    (scaling, soft caps) stays its own affair. Not thread-safe: one thread calls it.
    """

    def __init__(self, module: nn.Module, *, activate: Callable[[], None] | None = None) -> None:
        """Prepare `module`, a ``PreTrainedModel`` or a peft wrapper of one.

        Args:
            activate: Called before every forward pass; selects the adapter of a shared module.

        Raises:
            ConfigError: the model's attention is neither full nor sliding.
        """
        self.module = module
        self._activate = activate
        self._windows = _windows(module.config)
        parameters = inspect.signature(_unwrapped(module).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._select: Tensor | None = None
        model: Any = module  # a transformers model, whose methods nn.Module does not declare
        model.get_output_embeddings().register_forward_pre_hook(self._narrow)

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def logits(self, rows: Rows, *, select: Tensor, cache: Any = None) -> Tensor:
        """Logits (S, V) in float32 after the tokens at `select`, indices into the R*T tokens."""
        if self._activate is not None:
            self._activate()
        self._select = select
        try:
            output = self.module(
                input_ids=rows.tokens,
                position_ids=rows.positions,
                attention_mask=self._mask(rows),
                use_cache=cache is not None,
                **({self._cache_argument: cache} if cache is not None else {}),
            )
        finally:
            self._select = None
        return output.logits[0].float()

    def _narrow(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._select is None:
            return None
        hidden, *rest = inputs
        return (hidden.flatten(0, 1)[self._select][None], *rest)

    def _mask(self, rows: Rows) -> Tensor | dict[str, Tensor]:
        if isinstance(self._windows, dict):
            return {kind: _within(rows, window) for kind, window in self._windows.items()}
        return _within(rows, self._windows)


def _within(rows: Rows, window: int | None) -> Tensor:
    """Hide keys that lie `window` or more positions back."""
    if window is None:
        return rows.mask
    distance = rows.positions[:, :, None] - rows.key_positions[:, None, :]
    return rows.mask & (distance < window)[:, None]


def _windows(config: Any) -> int | dict[str, int | None] | None:
    """The sliding window of all layers, or of each kind of layer where a model mixes them."""
    window = getattr(config, "sliding_window", None)
    kinds: set[str] = set(getattr(config, "layer_types", None) or ())
    if unknown := kinds - {_FULL, _SLIDING}:
        raise ConfigError(
            f"Model type {config.model_type!r} has layers of kind {sorted(unknown)}, which engine "
            f"'torch' cannot serve: choose a model with full or sliding-window attention"
        )
    if _SLIDING in kinds:
        return {kind: window if kind == _SLIDING else None for kind in sorted(kinds)}
    return None if kinds else window


def _unwrapped(module: Any) -> nn.Module:
    """The transformers model inside a peft wrapper."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module
