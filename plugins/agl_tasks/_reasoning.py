"""Who is first, by comparisons of neighbours in an order."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final

from agl_tasks._rows import Split, TaskRow, generated

_NAMES: Final = ("Ada", "Bo", "Cem", "Dia", "Eli", "Fay", "Gus", "Hua")
_ORDERS: Final = (("taller", "tallest"), ("older", "oldest"), ("faster", "fastest"))


def reasoning(split: Split) -> list[TaskRow]:
    """Return orders whose comparisons are shuffled."""
    return generated("reasoning", _order, split)


def _order(draw: random.Random) -> TaskRow:
    names = draw.sample(_NAMES, draw.randint(3, 5))
    more, most = draw.choice(_ORDERS)
    said = [f"{a} is {more} than {b}." for a, b in pairwise(names)]
    draw.shuffle(said)
    text = f"{' '.join(said)} Who is the {most}? Answer with the name."
    return {"input": text, "expected": names[0]}
