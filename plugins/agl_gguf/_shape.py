"""A model's numbers, and what each of its tensors is named and ordered like in GGUF.

The names of keys and tensors are those of the specification of GGUF. llama.cpp rotates the pairs of
adjacent dimensions of a Llama's queries and keys, and transformers pairs each dimension of a head's
first half with one of its second half, so their rows change places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from agl_core.errors import ConfigError

ARCHITECTURES: Final = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""GGUF's name of an architecture by ``model_type``."""
_WHOLE: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_PER_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER: Final = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_ROPES: Final = ("default", "linear", "llama3")
ROPE_FACTORS: Final = "rope_freqs.weight"
"""Tensor with the divisor of each pair's frequency."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What ``config.json`` says of a model."""

    architecture: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head: int
    """Dimensions of a head."""
    context: int
    epsilon: float
    theta: float
    rope: Mapping[str, Any]
    vocabulary: int
    """Rows of the embedding, of which the last may have no token."""

    @property
    def scale(self) -> float | None:
        """The divisor of all positions, if the model's are scaled linearly."""
        return float(self.rope["factor"]) if _rope_type(self.rope) == "linear" else None

    def rope_factors(self) -> Any | None:
        """Return the divisor of each pair's frequency as Llama 3 scales them; None: all are 1."""
        if _rope_type(self.rope) != "llama3":
            return None
        factor, low, high, trained = (
            float(self.rope[key])
            for key in (
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            )
        )
        pairs = np.arange(0, self.head, 2, dtype=np.float64)
        turns = trained * self.theta ** (-pairs / self.head) / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)

    def name_of(self, tensor: str) -> str | None:
        """Return GGUF's name of a tensor of transformers; None if GGUF has none."""
        if (found := _LAYER.fullmatch(tensor)) is not None:
            name = _PER_LAYER.get(found[2])
            return None if name is None else f"blk.{found[1]}.{name}.{found[3]}"
        stem, _, kind = tensor.rpartition(".")
        return f"{_WHOLE[stem]}.{kind}" if stem in _WHOLE else None

    def reordered(self, name: str, values: Any) -> Any:
        """Return a tensor's values in the order in which llama.cpp reads them."""
        heads = {"attn_q": self.heads, "attn_k": self.kv_heads}.get(name.split(".")[-2])
        if self.architecture != "llama" or heads is None:
            return values
        halves = values.reshape(heads, 2, self.head // 2, *values.shape[1:])
        return np.ascontiguousarray(np.moveaxis(halves, 1, 2)).reshape(values.shape)


def shape_of(config: Mapping[str, Any], *, source: str) -> Architecture:
    """Read a model's configuration.

    Raises:
        ConfigError: the model is of another architecture, or has a part that is not converted.
    """
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"{source} is a model of type {kind!r}, but GGUF is written for "
            f"{', '.join(ARCHITECTURES)} alone: convert the Hugging Face export with llama.cpp's "
            f"convert_hf_to_gguf.py"
        )
    if config.get("use_sliding_window"):
        raise ConfigError(
            f"{source} has use_sliding_window, which llama.cpp does not apply to a {kind}: "
            f"keep its Hugging Face export"
        )
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if _rope_type(rope) not in _ROPES:
        raise ConfigError(
            f"{source} scales positions by {_rope_type(rope)!r}, but GGUF is written for "
            f"{', '.join(_ROPES)} alone: convert the Hugging Face export with llama.cpp's "
            f"convert_hf_to_gguf.py"
        )
    heads = int(config["num_attention_heads"])
    return Architecture(
        architecture=ARCHITECTURES[kind],
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        feed_forward=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        context=int(config["max_position_embeddings"]),
        epsilon=float(config["rms_norm_eps"]),
        theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        rope=rope,
        vocabulary=int(config["vocab_size"]),
    )


def _rope_type(rope: Mapping[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")
