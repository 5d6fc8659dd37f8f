"""Make a model of some 200,000 weights, or another size, for an example's own texts.

Qwen2's architecture with the demo's chat template. It learns from drawn conversations on one core,
in about a minute, and works offline. The same machine, library versions and seed give the same
files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2ForCausalLM

from agl_demo._sft import SftConfig, fit, new_model, shop_batches
from agl_demo._tokenizer import make_tokenizer

Draw = Callable[[random.Random], tuple[list[dict[str, Any]], list[dict[str, Any]], str]]
"""Draws a conversation: its messages, its tools and the assistant's answer."""

_TEXTS = 2_000


def make_small(directory: Path, draw: Draw, *, steps: int, seed: int = 0) -> None:
    """Train tokenizer and model on conversations and write them, the weights as bfloat16."""
    config = SftConfig(
        seed=seed, drill_steps=0, steps=steps, prompt_weight=0.0, hidden_size=64, layers=2
    )
    make(directory, draw, config)


def make(
    directory: Path,
    draw: Draw,
    config: SftConfig,
    *,
    drill: Draw | None = None,
    words: Sequence[str] = (),
) -> None:
    """Make a model of another size; in ``config.drill_steps`` it learns from ``drill`` first.

    Each of ``words`` is one token, wherever it occurs, and another one after a space.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(config.seed)
    chance = random.Random(config.seed)
    texts = ["system\n", "user\n", "assistant\n"]
    for _ in range(_TEXTS):
        messages, _, answer = draw(chance)
        texts += [*(message["content"] for message in messages), answer]
    tokenizer = make_tokenizer(texts)
    tokenizer.add_tokens([f"{space}{word}" for word in words for space in ("", " ")])
    model = new_model(tokenizer, config)
    drills = islice(shop_batches(tokenizer, config, drill or draw), config.drill_steps)
    fit(model, chain(drills, shop_batches(tokenizer, config, draw)), config)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def train_more(directory: Path, draw: Draw, config: SftConfig) -> None:
    """Train the model in a folder further, in ``config.steps``, on other conversations."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    fit(model, shop_batches(tokenizer, config, draw), config)
    model.to(torch.bfloat16).save_pretrained(directory)
