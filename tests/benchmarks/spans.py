"""Input of both stores: the same tokens and text, from which each store makes its own spans."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

ROLLOUT_SPANS = 10
PROMPT_TOKENS, SAMPLED_TOKENS = 400, 80
PROMPT, ANSWER = "x" * 700, "y" * 300
_VOCABULARY = 151_000


@dataclass(frozen=True)
class Tokens:
    """Tokens of one model call."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]


class Stopwatch:
    """Wall time, and processor time of all threads, since its creation."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "wall_s": time.perf_counter() - self._wall,
            "processor_s": time.process_time() - self._processor,
        }


def tokens(calls: int) -> list[Tokens]:
    """Return random tokens, the same in every process."""
    dice = random.Random(0)
    return [
        Tokens(
            prompt=[dice.randrange(_VOCABULARY) for _ in range(PROMPT_TOKENS)],
            sampled=[dice.randrange(_VOCABULARY) for _ in range(SAMPLED_TOKENS)],
            logprobs=[-dice.random() for _ in range(SAMPLED_TOKENS)],
        )
        for _ in range(calls)
    ]
