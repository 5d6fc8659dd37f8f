"""Make this example's model: ``python make_model.py --out model``.

It learns the answers of all four roles. Its planner names the right tool in half of the turns, and
any tool in the others. Works offline, in about a minute on one core.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from pathlib import Path
from typing import Any

import program
from agl_demo.small import make_small

STEPS = 500
RIGHT = 0.5
"""Share of the planner's answers in the training data that are right; others are drawn by lot."""


def draw(chance: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Draw a call of a role and its answer."""
    role = chance.choice([*program.SYSTEM])
    memory = program.Memory(chance.choices([*program.DOORS], k=program.WAY))
    memory.opened = chance.choice((program.WAY, chance.randrange(program.WAY)))
    tool = chance.choice([*program.DOORS.values()])
    if role == "planner":
        memory.opened = 0
        right = program.DOORS[memory.doors[0]]
        answer = right if chance.random() < RIGHT else tool
    elif role == "executor":
        answer = f"use {tool}"
    elif role == "verifier":
        answer = "continue" if memory.left else "stop"
    else:
        answer = program.LOST if memory.left else program.OUT
    return program.prompt(role, memory.read(role, tool)), [], answer


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_model.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    make_small(options.out, draw, steps=STEPS, seed=options.seed)


if __name__ == "__main__":
    main()
