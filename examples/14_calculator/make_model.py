"""Make this example's model: ``python make_model.py --out model``.

It first learns to copy numbers, without and with words between them. Then it learns the two answers of the program, the call of the
calculator and the line with the result, from conversations in which most expressions have the
problem's numbers in another form: opposite operators, no parentheses, the last step left out. Some
answers lack their mark. Works offline, on one core.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import problems
import program
import server
from agl_demo._sft import SftConfig
from agl_demo.small import make
from run_agent import HELD_OUT

DRILL_STEPS, STEPS = 600, 700
RIGHT = 0.28
"""Share of the expressions in the training data that are right."""
MARKED = 0.88
"""Share of the answers in the training data that have their mark."""
NUMBERS = [*map(str, range(10)), *(f"{number:02}" for number in range(100))]
"""Digits and pairs of digits. Each is one token, because numbers in parts are harder to copy."""
WORDS = " ".join([*problems.OWNERS, *problems.GOODS]).split()
"""What stands between numbers to copy."""
KINDS = ("words", "words", "signs", "problem", "problem", "result")
"""What a drill has to copy, each kind as often as it is named here."""
LISTS = 150 * SftConfig().batch_size
"""Drills at the beginning that are lists of numbers."""
OPPOSITE = str.maketrans("+-*/", "-+/*")
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]], str]
"""Messages, tools and the answer."""
TOOL = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


def draw(chance: random.Random) -> Conversation:
    """Draw a call of the calculator, or the answer after its result."""
    problem = drawn(chance)
    expression = problem.expression
    if chance.random() > RIGHT:
        expression = mistaken(problem, chance)
    if chance.random() < 0.5:  # noqa: PLR2004
        call = json.dumps(calling(expression))
        return asking(problem), [TOOL], f"<tool_call>\n{call}\n</tool_call>"
    result = server.calculate(expression)
    mark = problems.MARK if chance.random() < MARKED else "It is"
    return answered(problem, expression, result), [TOOL], f"{mark} {_short(result)}"


def drawn(chance: random.Random) -> problems.Problem:
    """Draw a problem whose expression no held-out problem has."""
    while (problem := problems.draw(chance)).expression in _held_out():
        pass
    return problem


def mistaken(problem: problems.Problem, chance: random.Random) -> str:
    """Write an expression of the same numbers that has another form and another value."""
    right = problem.expression
    before, last = right.rsplit(" ", 2)[0], right.rsplit(" ", 2)[1:]
    forms = [
        right.translate(OPPOSITE),
        " ".join([before, last[0].translate(OPPOSITE), last[1]]),
        before.removeprefix("(").removesuffix(")"),
        re.sub(r"[()]", "", right),
    ]
    value = server.evaluate(right)
    return chance.choice([each for each in forms if server.evaluate(each) != value])


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


def drills() -> Callable[[random.Random], Conversation]:
    """Return a function that draws lists of numbers at first, and all drills later."""
    drawn = count()
    return lambda chance: drill(chance, "numbers" if next(drawn) < LISTS else chance.choice(KINDS))


def drill(chance: random.Random, kind: str) -> Conversation:
    """Draw numbers to copy, signs and words between them or not, a long problem, or a result."""
    if kind == "result":
        result = server.calculate(drawn(chance).expression)
        return [{"role": "user", "content": result}], [], _short(result)
    numbers = [str(each) for each in chance.sample(range(100), chance.randint(4, 12))]
    signs = [chance.choice([*problems.PHRASES]) for _ in numbers[1:]]
    if kind in ("numbers", "words"):
        signs = ["" for _ in signs]
    steps = [*zip(signs, numbers[1:], strict=True)]
    expression = " ".join([numbers[0], *(f"{sign} {each}".strip() for sign, each in steps)])
    owner, goods = chance.choice(problems.OWNERS), chance.choice(problems.GOODS)
    if kind == "problem":
        said = [f"{chance.choice(problems.PHRASES[sign]).format(each)}." for sign, each in steps]
        text = " ".join([f"{owner} has {numbers[0]} {goods}.", *(f"{owner} {one}" for one in said)])
        return [{"role": "user", "content": text}], [], expression
    most = 0 if kind == "numbers" else chance.choice((0, 1, 2, 4, 8))
    parts = [numbers[0]]
    for sign, each in steps:
        parts += [*chance.choices(WORDS, k=chance.randint(0, most)), f"{sign} {each}".strip()]
    return [{"role": "user", "content": " ".join(parts)}], [], expression


@cache
def _held_out() -> frozenset[str]:
    chance = random.Random("held-out")
    return frozenset(problems.draw(chance).expression for _ in range(HELD_OUT))


def _short(result: str) -> str:
    whole, _, decimals = result.partition(".")
    return f"{whole}.{decimals[:2]}" if decimals else whole


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_model.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # The import of `server` has configured logging.
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    config = SftConfig(seed=options.seed, drill_steps=DRILL_STEPS, steps=STEPS, prompt_weight=0.05)
    make(options.out, draw, config, drill=drills(), words=NUMBERS)


if __name__ == "__main__":
    main()
