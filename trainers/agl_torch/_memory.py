"""Estimate of the device memory that weights and one training pass need, in bytes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from agl_core.errors import ConfigError
from agl_core.types import Policy
from agl_torch._forward import CHUNK_LOGITS
from agl_torch.adapters import model_of
from agl_torch.options import LoraOptions, TorchOptions

_GB: Final = 1e9
_FLOAT32: Final = 4
_LAYER_HIDDEN: Final = 10
_LAYER_INNER: Final = 3
_LOGIT_COPIES: Final = 5
"""The logits, the logits divided by temperature, the buffer that logsumexp keeps, and two
gradients."""
_SYSTEM: Final = 0.9
"""Fraction of a device's memory that a run may use."""
REMEDY: Final = (
    "lower engine.pack_tokens, set engine.lora, choose a smaller model, or train on several GPUs "
    "with engine.name = 'verl'"
)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model that the estimate uses."""

    layers: int
    hidden: int
    inner: int
    """Width of a layer's feed-forward part."""
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Return the sizes from a transformers configuration."""
        hidden = int(config.hidden_size)
        inner = getattr(config, "intermediate_size", None) or 4 * hidden
        return cls(int(config.num_hidden_layers), hidden, int(inner), int(config.vocab_size))

    def layer(self, tokens: int, width: int) -> int:
        """Return the bytes that one layer keeps for the gradient, at `width` bytes per number."""
        return width * tokens * (_LAYER_HIDDEN * self.hidden + _LAYER_INNER * self.inner)


@dataclass(frozen=True, slots=True)
class PassShape:
    """One forward and backward pass."""

    rows: int
    tokens: int
    """Tokens of each row, padding included."""
    terms: int
    """Tokens whose log-probabilities are trained."""
    width: int
    """Bytes of one number in the dtype of the layers."""
    masked: bool
    """Whether a row has branches and therefore needs an explicit mask."""

    def needs(self, shape: ModelShape, *, recompute: bool) -> dict[str, int]:
        """Return the bytes by purpose."""
        read = self.rows * self.tokens
        logits = min(self.terms * shape.vocabulary, max(CHUNK_LOGITS, shape.vocabulary))
        kept = (
            self.width * read * shape.hidden * shape.layers + 2 * shape.layer(read, self.width)
            if recompute
            else shape.layers * shape.layer(read, self.width)
        )
        parts = {
            "layers": kept,
            "log-probabilities": _LOGIT_COPIES * _FLOAT32 * logits
            + 2 * self.width * self.terms * shape.hidden,
        }
        if self.masked:
            parts["mask"] = (1 + self.width) * self.rows * self.tokens**2
        return parts


def policy_needs(
    policies: Sequence[Policy],
    options: TorchOptions,
    *,
    trains: bool,
    dtype: torch.dtype,
    reference: bool,
) -> dict[str, int]:
    """Return the bytes of weights, optimizer and a pass of `pack_tokens` tokens, by purpose.

    The passes of several policies run one after another, so only the largest counts.

    Args:
        trains: Whether the engine trains the trainable policies.
        dtype: Dtype of the served weights.
        reference: Whether trained policies keep their initial weights.

    Raises:
        OSError, ValueError: a model's configuration is missing or unknown to transformers.
    """
    width, lora, sums = dtype.itemsize, options.lora, Counter[str]()
    shared: set[str] = set()
    passes: list[dict[str, int]] = []
    for policy in policies:
        model = _outline(policy.model)
        count = sum(parameter.numel() for parameter in model.parameters())
        if not policy.trainable or lora is not None or reference:
            shared.add(policy.model)
        if policy.model in shared:
            sums[f"weights of {policy.model}"] = width * count
        if not policy.trainable:
            continue
        trained = count if lora is None else _adapter(model, lora)
        copies = width * count if lora is None and width != _FLOAT32 else 0  # served, and autocast
        sums[f"weights of policy {policy.name}"] = _FLOAT32 * trained + copies
        if not trains:
            continue
        sums["gradients"] += _FLOAT32 * trained
        sums["moments"] += 2 * _FLOAT32 * trained
        sums["weights for arithmetic"] = max(sums["weights for arithmetic"], copies)
        tokens = options.pack_tokens
        one = PassShape(rows=1, tokens=tokens, terms=tokens, width=width, masked=True)
        recompute = options.gradient_checkpointing != "never"
        passes.append(one.needs(ModelShape.of(model.config), recompute=recompute))
    largest = max(passes, key=lambda parts: sum(parts.values()), default={})
    return {**sums, **largest}


def check_memory(
    policies: Sequence[Policy],
    options: TorchOptions,
    *,
    trains: bool,
    device: torch.device,
    dtype: torch.dtype,
    reference: bool,
) -> None:
    """Check that weights, optimizer and one pass fit into the device's memory.

    Raises:
        ConfigError: they do not; the message lists the bytes by purpose.
    """
    try:
        parts = policy_needs(policies, options, trains=trains, dtype=dtype, reference=reference)
    except (OSError, ValueError):
        return  # loading the model raises the error with its cause
    total = total_memory(device)
    if sum(parts.values()) > usable(total):
        raise ConfigError(
            f"Engine 'torch' needs {itemized(parts)} on device {device.type!r}, which has "
            f"{total / _GB:.2f} GB, {_SYSTEM:.0%} of them for the run: {REMEDY}"
        )


def _outline(source: str) -> Any:
    """Return the model on the meta device, without weights."""
    config = AutoConfig.from_pretrained(model_of(source))
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _adapter(model: nn.Module, lora: LoraOptions) -> int:
    """Return the number of parameters of an adapter."""
    head: Any = model
    targets = lora.targets
    return sum(
        lora.rank * (layer.in_features + layer.out_features)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
        and (
            layer is not head.get_output_embeddings()
            if targets == "all-linear"
            else any(name == each or name.endswith(f".{each}") for each in targets)
        )
    )


def total_memory(device: torch.device) -> int:
    """Return the total memory of a GPU, or of the machine for a CPU."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that this process can still allocate; None if unknown."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    known = Path("/proc/meminfo")
    if not known.is_file():
        return None
    for line in known.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def usable(memory: int) -> int:
    """Return the part of `memory` that a run may use."""
    return int(memory * _SYSTEM)


def itemized(parts: Mapping[str, int]) -> str:
    """Return the sum and its parts as text."""
    listed = " + ".join(f"{name} {size / _GB:.2f}" for name, size in parts.items() if size)
    return f"{sum(parts.values()) / _GB:.2f} GB ({listed})"
