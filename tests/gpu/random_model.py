"""Write random weights in the shape of a known model, with a tokenizer that needs no download.

    python tests/gpu/random_model.py DIRECTORY [SHAPE]      SHAPE: qwen3-0.6b, qwen2.5-0.5b, tiny

Every row of the embedding has a token, so that any sampled id has a text: bytes first, then control
tokens, then words of four letters, which no merge reaches.
"""

from __future__ import annotations

import sys
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import (
    GenerationConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}{{- (tool | tojson) + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
KINDS: dict[str, tuple[Any, Any]] = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-0.6b": (
        "qwen3",
        {
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40_960,
            "rope_theta": 1_000_000.0,
        },
    ),
    "qwen2.5-0.5b": (
        "qwen2",
        {
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32_768,
            "rope_theta": 1_000_000.0,
        },
    ),
    "tiny": (
        "qwen3",
        {
            "vocab_size": 512,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 16_384,
        },
    ),
}


def make_model(directory: Path, shape: str) -> None:
    """Write the model; in bfloat16, but for the tiny one."""
    kind, numbers = SHAPES[shape]
    configuration, model = KINDS[kind]
    tokenizer = make_tokenizer(numbers["vocab_size"])
    torch.manual_seed(0)
    config = configuration(
        **numbers,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    made = model(config)
    if shape != "tiny":
        made = made.to(torch.bfloat16)
    made.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    made.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_tokenizer(size: int) -> Qwen2Tokenizer:
    """Return a tokenizer of `size` tokens."""
    first = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *CONTROL]
    words = ("".join(letters) for letters in product(ascii_lowercase, repeat=4))
    every = [*first, *islice(words, size - len(first))]
    tokenizer = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(every)},
        merges=[],
        unk_token=CONTROL[0],
        eos_token=CONTROL[2],
        pad_token=CONTROL[0],
        extra_special_tokens=[CONTROL[1]],
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


if __name__ == "__main__":
    make_model(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "qwen3-0.6b")
