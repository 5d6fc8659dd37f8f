"""What both stores are given: the same tokens and text, of which each makes its own spans."""

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
    """Of one model call."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]


class Stopwatch:
    """Time on the wall and of the processor, all threads of the process, since it was made."""

    def __init__(self) -> None:
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "wall_s": time.perf_counter() - self._wall,
            "processor_s": time.process_time() - self._processor,
        }


def tokens(calls: int) -> list[Tokens]:
    """Random ones, the same in every process."""
    dice = random.Random(0)
    return [
        Tokens(
            prompt=[dice.randrange(_VOCABULARY) for _ in range(PROMPT_TOKENS)],
            sampled=[dice.randrange(_VOCABULARY) for _ in range(SAMPLED_TOKENS)],
            logprobs=[-dice.random() for _ in range(SAMPLED_TOKENS)],
        )
        for _ in range(calls)
    ]
