"""Make the demo's model, or measure one: ``python -m agl_demo.make_model --out DIR``.

Works offline. The same machine, library versions, seed and thread count give the same files;
another thread count or processor sums floating-point numbers in another order and gives a
different, equally good model.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agl_demo._evaluate import Scores, measure
from agl_demo._sft import SftConfig, train
from agl_demo._tokenizer import make_tokenizer, shop_texts

_LOG = logging.getLogger(__name__)


def make(directory: Path, *, seed: int = 0, threads: int = 2) -> None:
    """Train tokenizer and model and write them to ``directory``, the weights as bfloat16."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer(shop_texts(seed))
    model = train(tokenizer, SftConfig(seed=seed)).to(torch.bfloat16)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def check(directory: Path, *, count: int = 400, seed: int = 0) -> list[Scores]:
    """Measure a saved model on held-out tasks, sampling at temperature 1 and greedily."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    _LOG.info("parameters %.2f M", sum(weight.numel() for weight in model.parameters()) / 1e6)
    return [
        measure(model, tokenizer, temperature=temperature, count=count, seed=seed)
        for temperature in (1.0, 0.0)
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m agl_demo.make_model", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="make a model in this folder")
    action.add_argument("--check", type=Path, metavar="DIR", help="measure the model in it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="part of what decides the weights")
    parser.add_argument("--count", type=int, default=400, help="held-out tasks to measure on")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if options.out is not None:
        started = time.monotonic()
        make(options.out, seed=options.seed, threads=options.threads)
        _LOG.info("made %s in %.0f s", options.out, time.monotonic() - started)
    for scores in check(options.out or options.check, count=options.count):
        _report(scores)


def _report(scores: Scores) -> None:
    parts = "  ".join(f"{name} {share:.3f}" for name, share in scores.writer_parts.items())
    _LOG.info("temperature %g", scores.temperature)
    _LOG.info("  planner  valid %.3f  right %.3f", scores.planner_valid, scores.planner_right)
    _LOG.info("  writer   right %.3f  (%s)", scores.writer_right, parts)
    for answer in scores.examples:
        _LOG.info("    %s", answer)


if __name__ == "__main__":
    main()
