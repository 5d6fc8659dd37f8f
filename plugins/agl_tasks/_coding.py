"""Short Python programs, of which the task is to say what they print.

No text of a model is executed.
"""

from __future__ import annotations

import random

from agl_tasks._rows import Split, TaskRow, generated


def coding(split: Split) -> list[TaskRow]:
    """Return programs with what they print."""
    return generated("coding", _program, split)


def _program(draw: random.Random) -> TaskRow:
    numbers = [draw.randint(0, 9) for _ in range(draw.randint(3, 6))]
    factor, limit = draw.randint(2, 5), draw.randint(2, 7)
    kind = draw.randrange(3)
    if kind == 0:
        code = f"print(sum({factor} * n for n in {numbers} if n > {limit}))"
        printed = str(sum(factor * n for n in numbers if n > limit))
    elif kind == 1:
        code = f"print(sorted({numbers})[::-1][:2])"
        printed = str(sorted(numbers)[::-1][:2])
    else:
        code = f"total = 0\nfor n in {numbers}:\n    total = total * {factor} + n\nprint(total)"
        printed = str(_horner(numbers, factor))
    text = f"What does this Python program print?\n\n{code}\n\nAnswer with the printed line."
    return {"input": text, "expected": printed}


def _horner(numbers: list[int], factor: int) -> int:
    total = 0
    for number in numbers:
        total = total * factor + number
    return total
