"""Forward pass of any Hugging Face causal language model, for both serving and training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from agl_core.errors import ConfigError

_FULL, _SLIDING = "full_attention", "sliding_attention"
CHUNK_LOGITS = 2**24
"""Maximum number of logits in memory while log-probabilities are computed: 64 MiB in float32."""
_PROBE_TOKENS = 6
_SAME = 0.05
"""Two results count as equal if their logits differ by less than this fraction of the logits'
standard deviation."""


@dataclass(frozen=True, slots=True)
class ForwardRows:
    """Input of a forward pass: R rows of T tokens that attend to K keys (cached ones included)."""

    tokens: Tensor
    """(R, T)"""
    positions: Tensor
    """(R, T) position ids."""
    mask: Tensor | None
    """(R, 1, T, K) True where a token attends to a key. None: plain causal attention, and K = T."""
    key_positions: Tensor
    """(R, K) or (1, K) position ids of the keys; models with a sliding window use them."""


class Entropies:
    """Collects the entropies of the distributions of a pass, without a gradient."""

    def __init__(self) -> None:
        self._chunks: dict[int, Tensor] = {}

    @torch.no_grad()
    def add(self, chunk: int, scaled: Tensor) -> None:
        """Add a chunk's logits (C, V); a chunk that the backward pass computes again is known."""
        if chunk not in self._chunks:
            self._chunks[chunk] = torch.special.entr(scaled.softmax(-1)).sum(-1)

    def result(self) -> Tensor:
        """Return the entropies (S,) in nats."""
        return torch.cat([self._chunks[chunk] for chunk in sorted(self._chunks)])


class CausalModel:
    """A causal language model that computes logits only for selected tokens.

    A hook selects the tokens before the output head, so that everything the model does to its
    logits afterwards (scaling, soft caps) still runs. Not thread-safe: only one thread may call it.
    """

    def __init__(self, module: nn.Module, *, activate: Callable[[], None] | None = None) -> None:
        """Wrap `module`, a ``PreTrainedModel`` or a peft wrapper of one.

        Args:
            activate: Called before every forward pass; selects the adapter of a shared module.

        Raises:
            ConfigError: the model's attention is neither full nor sliding.
        """
        self.module = module
        self._activate = activate
        config: Any = module.config
        self._windows = _windows(config)
        self._vocabulary = int(config.vocab_size)
        parameters = inspect.signature(_unwrapped(module).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._head_input: Callable[[Tensor], Tensor] | None = None
        """Computes the head's input (1, S, H) from the layers' output (R, T, H)."""
        self._layers = [
            layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)
        ]
        self._no_mask = torch.ones((1, 1, 1, 2), dtype=torch.bool)
        """Placeholder for "no mask", replaced by None at each layer. Its shape fits no keys: a
        layer that reads it fails."""
        self._maskless: bool | None = None
        """Whether the layers are causal without a mask; None until it has been tested."""
        model: Any = module  # a transformers model, whose methods nn.Module does not declare
        model.get_output_embeddings().register_forward_pre_hook(self._replace)

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def logits(
        self, rows: ForwardRows, *, select: Tensor, cache: Any = None, recompute: bool = False
    ) -> Tensor:
        """Return the logits (S, V) in float32 after the tokens at `select`.

        Args:
            select: (S,) indices into the R*T tokens.
            recompute: Use gradient checkpointing: keep only each layer's input for the gradient.
        """

        def selected(hidden: Tensor) -> Tensor:
            return hidden.flatten(0, 1)[select][None]

        return self._read(rows, selected, cache=cache, recompute=recompute)[0].float()

    def logprobs(
        self,
        rows: ForwardRows,
        *,
        select: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        recompute: bool = False,
        entropies: Entropies | None = None,
    ) -> Tensor:
        """Return the log-probabilities (S,) of `targets` (S,) after the tokens at `select`.

        At most `CHUNK_LOGITS` logits are in memory at a time; the backward pass recomputes those of
        each chunk.

        Args:
            recompute: As for `logits`.
            entropies: Gets the entropies of the same distributions.
        """
        size = max(1, CHUNK_LOGITS // self._vocabulary)
        if len(select) <= size:
            logits = self.logits(rows, select=select, recompute=recompute)
            return _logprobs(logits, targets, temperatures, entropies)
        kept: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            kept.append(hidden.flatten(0, 1)[select])  # (S, H)
            return kept[0][None, :0]

        self._read(rows, keep, recompute=recompute)
        parts = zip(*(whole.split(size) for whole in (kept[0], targets, temperatures)), strict=True)
        chunks = [
            checkpoint(
                partial(self._chunk, number=number, entropies=entropies),
                *part,
                use_reentrant=False,
                preserve_rng_state=False,
            )
            for number, part in enumerate(parts)
        ]
        return torch.cat(chunks)

    def _chunk(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        *,
        number: int,
        entropies: Entropies | None,
    ) -> Tensor:
        """Return the log-probabilities (C,) from the layers' output (C, H).

        This calls the whole model, because some models change the logits after the head. Its layers
        run on one dummy token, and the hook replaces their output.
        """
        one = targets.new_zeros((1, 1))
        self._head_input = lambda _: hidden[None]
        try:
            logits = self.module(input_ids=one, position_ids=one, use_cache=False).logits
        finally:
            self._head_input = None
        return _logprobs(logits[0].float(), targets, temperatures, entropies, chunk=number)

    def _read(
        self,
        rows: ForwardRows,
        head_input: Callable[[Tensor], Tensor],
        *,
        cache: Any = None,
        recompute: bool = False,
    ) -> Tensor:
        """Return the logits (1, S, V) of a pass with the result of `head_input` as head input."""
        if self._activate is not None:
            self._activate()
        if rows.mask is None and not self._is_maskless():
            rows = _masked(rows)
        self._head_input = head_input
        try:
            again = recompute and torch.is_grad_enabled()
            with (
                self._layers_that(recompute=again) if again or rows.mask is None else nullcontext()
            ):
                output = self.module(
                    input_ids=rows.tokens,
                    position_ids=rows.positions,
                    attention_mask=self._mask(rows),
                    use_cache=cache is not None,
                    **({self._cache_argument: cache} if cache is not None else {}),
                )
        finally:
            self._head_input = None
        return output.logits

    def _replace(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if self._head_input is None:
            return None
        hidden, *rest = inputs
        return (self._head_input(hidden), *rest)

    @contextmanager
    def _layers_that(self, *, recompute: bool) -> Generator[None]:
        """Patch the layers to replace `_no_mask` by None and, if asked, to checkpoint."""
        before = [vars(layer).get("forward") for layer in self._layers]
        for layer in self._layers:
            layer.forward = partial(self._layer, layer.forward, recompute)
        try:
            yield
        finally:
            for layer, own in zip(self._layers, before, strict=True):
                del layer.forward
                if own is not None:
                    layer.forward = own

    def _layer(
        self, forward: Callable[..., Any], recompute: bool, *args: Any, **kwargs: Any
    ) -> Any:
        args = tuple(None if each is self._no_mask else each for each in args)
        kwargs = {name: None if each is self._no_mask else each for name, each in kwargs.items()}
        if not recompute:
            return forward(*args, **kwargs)
        return checkpoint(
            partial(forward, **kwargs), *args, use_reentrant=False, preserve_rng_state=False
        )

    def _is_maskless(self) -> bool:
        """Test once whether a short pass gives the same logits without a mask as with one."""
        if self._maskless is None:
            self._maskless = bool(self._layers)
            places = torch.arange(_PROBE_TOKENS, device=self.device)
            tokens = places[None] % self._vocabulary
            probe = ForwardRows(tokens, places[None], None, places[None])
            try:
                with torch.no_grad():
                    plain, masked = (
                        self.logits(rows, select=places) for rows in (probe, _masked(probe))
                    )
            except (RuntimeError, ValueError, TypeError):  # the layers need the mask
                self._maskless = False
            else:
                self._maskless &= bool((plain - masked).abs().max() < _SAME * masked.std())
        return self._maskless

    def _mask(self, rows: ForwardRows) -> Tensor | dict[str, Tensor]:
        if isinstance(self._windows, dict):
            return {kind: self._within(rows, window) for kind, window in self._windows.items()}
        return self._within(rows, self._windows)

    def _within(self, rows: ForwardRows, window: int | None) -> Tensor:
        """Return the mask without keys that are `window` or more positions back."""
        if rows.mask is None:
            if window is None or rows.tokens.shape[1] <= window:
                return self._no_mask
            rows = _masked(rows)
        mask = rows.mask
        assert mask is not None
        if window is not None:
            distance = rows.positions[:, :, None] - rows.key_positions[:, None, :]
            mask = mask & (distance < window)[:, None]
        return self._bias(mask) if torch.is_grad_enabled() else mask

    def _bias(self, mask: Tensor) -> Tensor:
        """Return the mask as an additive bias: a layer would make its own of a boolean one."""
        kind = mask.device.type
        dtype = next(self.module.parameters()).dtype
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
        return bias.masked_fill_(~mask, float("-inf"))


def _masked(rows: ForwardRows) -> ForwardRows:
    """Return the same rows with an explicit causal mask."""
    places = torch.arange(rows.tokens.shape[1], device=rows.tokens.device)
    causal = places[None, :] <= places[:, None]
    return replace(rows, mask=causal.expand(len(rows.tokens), 1, -1, -1))


def _logprobs(
    logits: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    entropies: Entropies | None,
    *,
    chunk: int = 0,
) -> Tensor:
    scaled = logits / temperatures[:, None]
    if entropies is not None:
        entropies.add(chunk, scaled)
    return scaled.gather(1, targets[:, None])[:, 0] - scaled.logsumexp(-1)


def _windows(config: Any) -> int | dict[str, int | None] | None:
    """Return the sliding window of all layers, or of each kind of layer in a mixed model."""
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
    """Return the transformers model inside a peft wrapper."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module
