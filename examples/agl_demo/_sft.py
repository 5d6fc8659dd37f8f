"""Supervised training of the demo's model from random weights."""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from agl_demo._corpus import example
from agl_demo.world import ADJECTIVES, NOUNS, UNITS

_LOG = logging.getLogger(__name__)

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]
"""Token ids and loss weights of each step, both [batch, length]."""
Example = tuple[list[dict[str, Any]], list[dict[str, Any]], str]
"""Messages, tools and the assistant's text."""


@dataclass(frozen=True, slots=True)
class SftConfig:
    """All settings that determine the weights, except the machine and its thread count."""

    seed: int = 0
    drill_steps: int = 200
    """Number of optimizer steps on copying random tokens, before the shop's texts."""
    steps: int = 600
    batch_size: int = 32
    peak_lr: float = 3e-3
    warmup_steps: int = 30
    prompt_weight: float = 0.1
    """Loss weight of a prompt token; an answer token has weight 1."""
    hidden_size: int = 128
    layers: int = 3
    mlp_size: int = 384


def new_model(tokenizer: PreTrainedTokenizerBase, config: SftConfig) -> Qwen2ForCausalLM:
    """Create a Qwen2 with random weights and head size 64, which vLLM also supports on a CPU."""
    heads = config.hidden_size // 64
    shape = Qwen2Config(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=config.hidden_size,
        intermediate_size=config.mlp_size,
        num_hidden_layers=config.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=tokenizer.model_max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.03,
    )
    model = Qwen2ForCausalLM(shape)
    _tie_word_twins(model, tokenizer)
    return model


def _tie_word_twins(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Initialise a word's embeddings with and without leading space as equal plus a common offset.

    The planner reads " hard" and must write "hard"; from independent embeddings it learns this
    mapping late or, for some words, never.
    """
    rows = model.get_input_embeddings().weight.data
    offset = torch.randn(rows.shape[1]) * model.config.initializer_range
    vocab = tokenizer.get_vocab()
    for token, index in sorted(vocab.items()):
        if token.startswith(("Ġ", " ")) and token[1:] in vocab:
            rows[vocab[token[1:]]] = rows[index] + offset


def train(tokenizer: PreTrainedTokenizerBase, config: SftConfig) -> Qwen2ForCausalLM:
    """Train a new model and return it in float32 and evaluation mode."""
    torch.manual_seed(config.seed)
    model = new_model(tokenizer, config)
    drills = islice(_drills(tokenizer, config), config.drill_steps)
    fit(model, chain(drills, shop_batches(tokenizer, config)), config)
    return model


def fit(model: Qwen2ForCausalLM, batches: Batches, config: SftConfig) -> None:
    """Train a model in place on one batch per step and leave it in evaluation mode."""
    model.train()
    optimizer = _optimizer(model)
    started = time.monotonic()
    for step in range(config.drill_steps + config.steps):
        tokens, weights = next(batches)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, config)
        loss = _update(model, optimizer, tokens, weights)
        if step % 50 == 0:
            _LOG.info("step %d  loss %.3f  %.0f s", step, loss, time.monotonic() - started)
    model.eval()


def _optimizer(model: Qwen2ForCausalLM) -> torch.optim.AdamW:
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim < 2]  # noqa: PLR2004
    groups = [
        {"params": matrices, "weight_decay": 0.05},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def _learning_rate(step: int, config: SftConfig) -> float:
    """Return the learning rate: warmup in both phases, cosine decay to 5 % in the second."""
    drilling = step < config.drill_steps
    within = step if drilling else step - config.drill_steps
    warmup = min(1.0, (within + 1) / config.warmup_steps)
    if drilling:
        return config.peak_lr * warmup
    cosine = 0.5 * (1 + math.cos(math.pi * within / config.steps))
    return config.peak_lr * warmup * (0.05 + 0.95 * cosine)


def _update(
    model: Qwen2ForCausalLM,
    optimizer: torch.optim.Optimizer,
    tokens: torch.Tensor,
    weights: torch.Tensor,
) -> float:
    """Take one step on tokens [batch, length] with loss weights ``weights`` of the same shape."""
    logits = model(input_ids=tokens).logits
    losses = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    targets = weights[:, 1:].flatten()
    loss = (losses * targets).sum() / targets.sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def _drills(tokenizer: PreTrainedTokenizerBase, config: SftConfig) -> Batches:
    """Yield random shop words, a separator and the same words; half the rows contain a number."""
    rng = torch.Generator().manual_seed(config.seed)
    digits = torch.tensor(tokenizer.convert_tokens_to_ids(list("0123456789")))
    texts = [f"{word} {word}" for word in (*ADJECTIVES, *NOUNS, *UNITS)]
    words = torch.tensor(
        sorted({token for text in texts for token in tokenizer(text)["input_ids"]})
    )
    rows = config.batch_size
    while True:
        length = int(torch.randint(8, 16, (), generator=rng))
        first = words[torch.randint(0, len(words), (rows, length), generator=rng)]
        picks = torch.randint(0, 10, (rows // 2, 2), generator=rng)
        first[: rows // 2, 2:4] = digits[picks]
        separator = torch.full((rows, 1), tokenizer.eos_token_id)
        tokens = torch.cat([first, separator, first], dim=1)
        weights = torch.zeros(tokens.shape)
        weights[:, length + 1 :] = 1.0
        yield tokens, weights


def shop_batches(
    tokenizer: PreTrainedTokenizerBase,
    config: SftConfig,
    draw: Callable[[random.Random], Example] = example,
) -> Batches:
    """Yield new examples, padded on the right, where causal attention ignores the padding."""
    rng = random.Random(config.seed)
    while True:
        prompts, answers = [], []
        for _ in range(config.batch_size):
            messages, tools, answer = draw(rng)
            text = tokenizer.apply_chat_template(
                messages, tools=tools or None, add_generation_prompt=True, tokenize=False
            )
            prompts.append(tokenizer(text)["input_ids"])
            answers.append([*tokenizer(answer)["input_ids"], tokenizer.eos_token_id])
        length = max(map(len, (p + a for p, a in zip(prompts, answers, strict=True))))
        tokens = torch.full((config.batch_size, length), tokenizer.pad_token_id)
        weights = torch.zeros(tokens.shape)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            end = len(prompt) + len(answer)
            tokens[row, :end] = torch.tensor(prompt + answer)
            weights[row, : len(prompt)] = config.prompt_weight
            weights[row, len(prompt) : end] = 1.0
        yield tokens, weights
