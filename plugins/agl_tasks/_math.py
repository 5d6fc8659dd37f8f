"""Word problems whose answer is a whole number."""

from __future__ import annotations

import random

from agl_tasks._rows import Split, TaskRow, generated


def math(split: Split) -> list[TaskRow]:
    """Return word problems of one or two steps."""
    return generated("math", _problem, split)


def _problem(draw: random.Random) -> TaskRow:
    boxes, each, taken = draw.randint(2, 12), draw.randint(3, 20), draw.randint(1, 5)
    thing = draw.choice(("pencils", "apples", "stamps", "screws", "tiles"))
    kind = draw.randrange(3)
    if kind == 0:
        text = f"{boxes} boxes hold {each} {thing} each, and {taken} {thing} are taken out. How many are left?"
        answer = boxes * each - taken
    elif kind == 1:
        text = f"A shop has {boxes * each} {thing} and packs them in {boxes} equal boxes. How many are in one box?"
        answer = each
    else:
        text = f"One pack costs {each} coins. What do {boxes} packs and a bag of {taken} coins cost together?"
        answer = boxes * each + taken
    return {"input": f"{text} Answer with the number.", "expected": str(answer)}
