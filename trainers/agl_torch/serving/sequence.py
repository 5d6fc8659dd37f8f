"""A request, its answers, and the pieces in which they are delivered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from agl_core.errors import EngineError
from agl_torch.serving.sampling import SamplingParams, uniforms

Likeliest = list[tuple[int, float]]
"""Token ids and log-probabilities, most likely first."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Newly sampled tokens of one answer."""

    choice: int
    tokens: list[int]
    logprobs: list[float]
    tops: list[Likeliest]
    finish: str | None
    """``stop`` or ``length`` in the last piece, otherwise None."""


@dataclass(slots=True, eq=False)
class Generation:
    """One request: a prompt with `n` answers, delivered on the request's event loop."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    n: int
    stream: bool
    """Deliver every token when it is sampled instead of whole answers."""
    stops: Callable[[list[int]], bool] | None
    """Whether the newest token of an answer completes one of the request's stop strings."""
    loop: asyncio.AbstractEventLoop
    pieces: asyncio.Queue[Piece | EngineError]
    images: tuple[str, ...] = ()
    """``data:`` URLs of the images in the prompt, in order; empty for a text model."""
    version: int | None = None
    """Version of the weights that answer; None until the first answer starts."""
    cancelled: bool = False
    """May be set on any thread; the answers' slots are freed before the next token."""


@dataclass(slots=True, eq=False)
class AnswerRow:
    """One row of the batch."""

    generation: Generation
    choice: int
    stream: random.Random
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    tops: list[Likeliest] = field(default_factory=list[Likeliest])
    cached: int = 0
    """Number of tokens whose keys and values are in the row's slot."""
    delivered: int = 0

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.generation.prompt

    @property
    def last(self) -> int:
        """The token that the next pass reads."""
        return self.tokens[-1] if self.tokens else self.prompt[-1]

    @property
    def final_length(self) -> int:
        """Maximum length of this row."""
        return len(self.prompt) + self.generation.sampling.max_tokens

    def take(self, token: int, logprob: float, top: Likeliest) -> None:
        """Append a sampled token."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.tops.append(top)

    def finish(self, ends: frozenset[int]) -> str | None:
        """Return why the newest token ends the answer; None if it does not.

        Args:
            ends: Ids of the tokens that end an answer.
        """
        generation = self.generation
        if self.tokens[-1] in ends:
            return "stop"
        if generation.stops is not None and generation.stops(self.tokens):
            return "stop"
        return "length" if len(self.tokens) >= generation.sampling.max_tokens else None

    def piece(self, finish: str | None) -> Piece:
        """Return the tokens that have not been delivered yet."""
        new = slice(self.delivered, None)
        self.delivered = len(self.tokens)
        return Piece(self.choice, self.tokens[new], self.logprobs[new], self.tops[new], finish)


def answers(generation: Generation) -> list[AnswerRow]:
    """Return the rows of a request."""
    seed = generation.sampling.seed
    return [AnswerRow(generation, choice, uniforms(seed, choice)) for choice in range(generation.n)]
