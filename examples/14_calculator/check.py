"""Measure what the model writes before training: ``python check.py model``.

Answers are sampled at temperature 1: calls of the calculator for the held-out problems, and
answers after the results of the right expressions.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import make_model
import problems
import server
import torch
from run_agent import HELD_OUT
from transformers import AutoModelForCausalLM, AutoTokenizer

LONGEST = 64
"""Tokens of an answer."""
Messages = list[dict[str, Any]]


def expression(text: str) -> str:
    """Return the expression of a call of the calculator; empty if it is none."""
    called = text.strip().removeprefix("<tool_call>").removesuffix("</tool_call>")
    try:
        return str(json.loads(called)["arguments"]["expression"])
    except (ValueError, KeyError, TypeError):
        return ""


def value(text: str) -> str:
    """Return the value of an expression as the server says it; empty if it has none."""
    try:
        return server.calculate(text)
    except server.ToolError:
        return ""


@torch.no_grad()
def answers(directory: Path, chats: Sequence[Messages]) -> list[str]:
    """Sample an answer of the model to each conversation."""
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    asked = tokenizer.apply_chat_template(
        list(chats), tools=[make_model.TOOL], add_generation_prompt=True, tokenize=False
    )
    read = tokenizer(asked, return_tensors="pt", padding=True)
    made = model.generate(**read, do_sample=True, max_new_tokens=LONGEST)
    return tokenizer.batch_decode(made[:, read["input_ids"].shape[1] :], skip_special_tokens=True)


def numbers(text: str) -> list[str]:
    """Return the numbers of an expression in their order."""
    return re.findall(r"\d+", text)


def measured(directory: Path, count: int = HELD_OUT) -> dict[str, float]:
    """Return what share of the answers to the first held-out problems is right, by aspect."""
    chance = random.Random("held-out")
    drawn = [problems.draw(chance) for _ in range(count)]
    results = [value(each.expression) for each in drawn]
    calls = [expression(text) for text in answers(directory, [*map(make_model.asking, drawn)])]
    answered = [
        make_model.answered(each, each.expression, result)
        for each, result in zip(drawn, results, strict=True)
    ]
    said = answers(directory, answered)
    judged = {
        "calls that can be computed": [value(call) != "" for call in calls],
        "calls with the problem's numbers": [
            numbers(call) == numbers(each.expression)
            for call, each in zip(calls, drawn, strict=True)
        ],
        "calls with the right value": [
            value(call) == result for call, result in zip(calls, results, strict=True)
        ],
        "answers with the mark": [text.startswith(problems.MARK) for text in said],
        "answers with the result": [
            problems.judge(" ".join([problems.MARK, *text.split()[-1:]]), each.value)[0] == 1.0
            for text, each in zip(said, drawn, strict=True)
        ],
    }
    return {name: sum(each) / count for name, each in judged.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python check.py", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of the model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not options.model.is_dir():
        parser.error(f"{str(options.model)!r} is no folder: name that of a model, such as model")
    torch.manual_seed(options.seed)
    for name, found in measured(options.model).items():
        print(f"{found:.3f} {name}")


if __name__ == "__main__":
    main()
