"""The rows of generated sets: the same in every run, with no question in both splits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, Literal

Split = Literal["train", "val"]
TaskRow = dict[str, Any]
"""``id``, ``input``, ``expected`` and ``metadata`` of a task."""

TRAIN: Final = 200
VAL: Final = 50
_MOST_DRAWS: Final = 100


def generated(name: str, make: Callable[[random.Random], TaskRow], split: Split) -> list[TaskRow]:
    """Return the rows of a split, which `make` draws.

    Args:
        name: The set's name, for ids and ``metadata["set"]``; it also seeds the random numbers.
        make: Returns ``input``, ``expected`` and optional ``metadata`` of one task.
        split: ``train`` or ``val``.
    """
    draw = random.Random(name)  # noqa: S311  not for secrets
    rows: dict[str, TaskRow] = {}
    for _ in range(_MOST_DRAWS * (TRAIN + VAL)):
        row = make(draw)
        rows.setdefault(row["input"], row)
        if len(rows) == TRAIN + VAL:
            break
    chosen = [*rows.values()][:TRAIN] if split == "train" else [*rows.values()][TRAIN:]
    return [
        {
            **row,
            "id": f"{name}-{split}-{number}",
            "metadata": {"set": name, **row.get("metadata", {})},
        }
        for number, row in enumerate(chosen)
    ]
