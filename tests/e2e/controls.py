"""Rewards that carry no information about the answer."""

from __future__ import annotations

import random
from typing import Any

from agl_demo.training import reward

from agl_core import AttemptRecord, Task


class Shuffled:
    """In training, a reward drawn from those of the evaluation before it; else the true one.

    As often 1 as the model is right when training begins, and independent of every answer that is
    trained on, an attempt's own and those of its group, and of the order in which they come.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._pool: list[float] = []

    def __call__(self, task: Task, output: Any, attempt: AttemptRecord) -> float:
        if attempt.rollout.mode == "train":
            return self._random.choice(self._pool)
        self._pool.append(reward(task, output, attempt))
        return self._pool[-1]
