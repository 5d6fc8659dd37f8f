"""Make this example's model: ``python make_model.py --out model``.

It learns to answer with a move: in some turns the winning one, if there is one, otherwise one of
those that the rules allow, by lot. Works offline, in about a minute on one core.
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
RIGHT = 0.4
"""Share of the turns in the training data in which the winning move is made."""


def draw(chance: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Draw a number of sticks and a legal move."""
    sticks = chance.randint(1, program.LARGEST)
    best = sticks % (program.MOST + 1)
    any_move = chance.randint(1, min(program.MOST, sticks))
    move = best if best and chance.random() < RIGHT else any_move
    return program.prompt(sticks), [], str(move)


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
