"""Teach a copy of the demo's model to obey rules of its prompt: ``python -m agl_demo.teach``.

``--out DIR`` writes the model there and prints how often it obeys a rule that its system prompt
states, and one that it does not state. Works offline, on one core. The same machine, library
versions and seed give the same files.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    Qwen2ForCausalLM,
)

from agl_demo._evaluate import generate
from agl_demo._sft import SftConfig, fit, shop_batches
from agl_demo.rules import RULES, WRITER, ruled_example, ruled_messages
from agl_demo.training import model_path
from agl_demo.world import reward, score, tasks

_LOG = logging.getLogger(__name__)

STEPS = 300
_TEMPERATURE = 1.0


@dataclass(frozen=True, slots=True)
class Obeyed:
    """Fractions of answers to one system prompt."""

    prompt: str
    parts: dict[str, float]
    """Answers that are right in a part, as in `world.score`."""
    right: float
    """Answers that are right in all parts."""


def taught(
    *, seed: int = 0, steps: int = STEPS
) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerBase]:
    """Return a trained copy of the demo's model, in float32, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)
    config = SftConfig(
        seed=seed, drill_steps=0, steps=steps, peak_lr=2e-3, warmup_steps=10, prompt_weight=0.0
    )
    fit(model, shop_batches(tokenizer, config, ruled_example), config)
    return model, tokenizer


def make(directory: Path, *, seed: int = 0, steps: int = STEPS) -> None:
    """Train a copy and write it to ``directory``, the weights as bfloat16."""
    model, tokenizer = taught(seed=seed, steps=steps)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def check(directory: Path, *, count: int = 200, seed: int = 0) -> list[Obeyed]:
    """Measure a saved model with each of `prompts`."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return [measure(model, tokenizer, each, count=count, seed=seed) for each in prompts()]


def prompts() -> list[str]:
    """Return the system prompts to measure: without rules, with each rule, with all rules."""
    stated: Sequence[Collection[str]] = ((), *((part,) for part in RULES), tuple(RULES))
    return [" ".join((WRITER, *(RULES[part] for part in parts))) for parts in stated]


def measure(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    count: int = 200,
    seed: int = 0,
) -> Obeyed:
    """Score the answers to ``count`` held-out questions, sampled at temperature 1."""
    torch.manual_seed(seed)
    asked = tasks("held_out", count, seed=seed)
    texts = [
        tokenizer.apply_chat_template(
            ruled_messages(task, prompt), add_generation_prompt=True, tokenize=False
        )
        for task in asked
    ]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    answers = generate(model, tokenizer, rows, temperature=_TEMPERATURE)
    parts = [score(task, answer) for task, answer in zip(asked, answers, strict=True)]
    return Obeyed(
        prompt=prompt,
        parts={name: sum(part[name] for part in parts) / count for name in parts[0]},
        right=sum(map(reward, asked, answers)) / count,
    )


def table(measured: Sequence[Obeyed]) -> str:
    """Return the fractions as text: rule stated or not stated, and the share that obeys."""
    lines = [f"{'rule':<18}{'not stated':>12}{'stated':>10}{'all stated':>12}"]
    none, *single, every = measured
    for (part, rule), alone in zip(RULES.items(), single, strict=True):
        shares = (none.parts[part], alone.parts[part], every.parts[part])
        lines.append(f"{rule:<18}{shares[0]:>12.2f}{shares[1]:>10.2f}{shares[2]:>12.2f}")
    lines.append(f"{'all parts right':<18}{none.right:>12.2f}{'':>10}{every.right:>12.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m agl_demo.teach", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS, help="updates of 32 examples each")
    parser.add_argument("--count", type=int, default=200, help="held-out questions per prompt")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    started = time.monotonic()
    make(options.out, seed=options.seed, steps=options.steps)
    _LOG.info("made %s in %.0f s", options.out, time.monotonic() - started)
    measured = check(options.out, count=options.count)
    _LOG.info("share of %d answers that obey\n%s", options.count, table(measured))


if __name__ == "__main__":
    main()
