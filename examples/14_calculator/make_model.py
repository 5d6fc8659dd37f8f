"""Make this example's model: ``python make_model.py --out model``.

It first learns to write a problem as an expression, and to copy numbers. Then it learns the two
answers of the program, the call of the calculator and the line with the result, from conversations
with faults: some operators are drawn by lot, and some answers lack their mark. Works offline, on
one core.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import sys
from pathlib import Path
from typing import Any

import problems
import program
import server
from agl_demo._sft import SftConfig
from agl_demo.small import make

DRILL_STEPS, STEPS = 1200, 700
BY_LOT = 0.4
"""Share of the operators in the training data that are drawn by lot."""
MARKED = 0.85
"""Share of the answers in the training data that have their mark."""
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def draw(chance: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Draw a call of the calculator, or the answer after its result."""
    problem = problems.draw(chance)
    expression = "".join(_faulty(chance, each) for each in re.split(r"( . )", problem.expression))
    if chance.random() < 0.5:  # noqa: PLR2004
        call = json.dumps(calling(expression))
        return asking(problem), [TOOL], f"<tool_call>\n{call}\n</tool_call>"
    result = server.calculate(expression)
    mark = problems.MARK if chance.random() < MARKED else "It is"
    return answered(problem, expression, result), [TOOL], f"{mark} {_short(result)}"


def calling(expression: str) -> dict[str, Any]:
    """Return a call of the calculator."""
    return {"name": "calculate", "arguments": {"expression": expression}}


def asking(problem: problems.Problem) -> list[dict[str, Any]]:
    """Return what the program sends to have a problem solved."""
    return [
        {"role": "system", "content": program.SYSTEM},
        {"role": "user", "content": problem.question},
    ]


def answered(problem: problems.Problem, expression: str, result: str) -> list[dict[str, Any]]:
    """Return what the program sends once the calculator has computed an expression."""
    return [
        *asking(problem),
        {"role": "assistant", "content": "", "tool_calls": [{"function": calling(expression)}]},
        {"role": "tool", "content": result},
    ]


def drill(chance: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Draw a problem and its expression, or a result and the number to answer with."""
    problem = problems.draw(chance)
    if chance.random() < 0.5:  # noqa: PLR2004
        return [{"role": "user", "content": problem.question}], [], problem.expression
    result = server.calculate(problem.expression)
    return [{"role": "user", "content": result}], [], _short(result)


def _short(result: str) -> str:
    whole, _, decimals = result.partition(".")
    return f"{whole}.{decimals[:2]}" if decimals else whole


def _faulty(chance: random.Random, part: str) -> str:
    sign = part.strip()
    if sign in problems.PHRASES and chance.random() < BY_LOT:
        return f" {chance.choice([*problems.PHRASES])} "
    return part


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_model.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # The import of `server` has configured logging.
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    config = SftConfig(seed=options.seed, drill_steps=DRILL_STEPS, steps=STEPS, prompt_weight=0.0)
    make(options.out, draw, config, drill=drill)


if __name__ == "__main__":
    main()
