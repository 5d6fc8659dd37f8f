"""A language model of one vector: the smallest model that an engine can serve, train and save."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from agl_core.errors import ConfigError

__all__ = ["END", "WEIGHTS", "Term", "ToyModel", "decode", "encode", "toy_logprobs"]

_LETTERS = "".join(map(chr, range(32, 127)))
END = len(_LETTERS)
"""Id of the token that ends an answer."""
SIZE = END + 1
"""Size of the vocabulary: the printable characters of ASCII, and `END`."""
WEIGHTS = "weights.json"
_MOMENTUM = "training_state.json"


def encode(text: str) -> list[int]:
    """Return the ids of a text; other characters become ``?``."""
    return [ord(letter) - 32 if letter in _LETTERS else ord("?") - 32 for letter in text]


def decode(ids: Sequence[int]) -> str:
    """Return the text of ids; `END` has none."""
    return "".join(_LETTERS[token] for token in ids if token != END)


@dataclass(frozen=True, slots=True)
class Term:
    """One sampled token of a batch."""

    token: int
    advantage: float
    weight: float


@dataclass(slots=True)
class ToyModel:
    """A model that draws each token from one softmax, independent of the tokens before it."""

    logits: list[float] = field(default_factory=lambda: [0.0] * SIZE)
    momentum: list[float] = field(default_factory=lambda: [0.0] * SIZE)
    """Momentum of the optimizer."""

    def logprobs(self, temperature: float) -> list[float]:
        """Return the log-probability of every token."""
        scaled = [logit / temperature for logit in self.logits]
        top = max(scaled)
        total = top + math.log(sum(math.exp(value - top) for value in scaled))
        return [value - total for value in scaled]

    def sample(self, temperature: float, random: Random) -> tuple[int, float]:
        """Return a token with its log-probability; the most likely one at temperature 0."""
        values = self.logprobs(temperature or 1.0)
        if temperature == 0:
            token = max(range(SIZE), key=values.__getitem__)
        else:
            token = random.choices(range(SIZE), [math.exp(value) for value in values])[0]
        return token, values[token]

    def train(self, terms: Sequence[Term], *, lr: float, max_grad_norm: float) -> None:
        """Do one step along the weighted policy gradient, with momentum.

        A gradient with a norm above `max_grad_norm` is scaled down to it.
        """
        chances = [math.exp(value) for value in self.logprobs(1.0)]
        total = sum(term.weight for term in terms) or 1.0
        gradient = [0.0] * SIZE
        for term in terms:
            share = term.weight * term.advantage / total
            for token, chance in enumerate(chances):
                gradient[token] += share * ((token == term.token) - chance)
        scale = max_grad_norm / max(math.hypot(*gradient), max_grad_norm)
        self.momentum = [0.9 * m + scale * g for m, g in zip(self.momentum, gradient, strict=True)]
        self.logits = [w + lr * m for w, m in zip(self.logits, self.momentum, strict=True)]

    def save(self, directory: Path, *, resumable: bool) -> None:
        """Write the weights, and the optimizer's state if training is to resume from them."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / WEIGHTS).write_bytes(msgspec.json.encode(self.logits))
        if resumable:
            (directory / _MOMENTUM).write_bytes(msgspec.json.encode(self.momentum))

    def load(self, directory: Path) -> None:
        """Read the files that `save` wrote.

        Raises:
            ConfigError: the directory has no weights.
        """
        self.logits = _numbers(directory / WEIGHTS)
        state = directory / _MOMENTUM
        self.momentum = _numbers(state) if state.is_file() else [0.0] * SIZE


def toy_logprobs(
    directory: str, prompt: Sequence[int], answer: Sequence[int], temperature: float
) -> list[float]:
    """Return an answer's log-probabilities by the weights in a directory (engine contract)."""
    del prompt
    scaled = [logit / temperature for logit in _numbers(Path(directory) / WEIGHTS)]
    total = math.log(sum(map(math.exp, scaled)))
    return [scaled[token] - total for token in answer]


def _numbers(file: Path) -> list[float]:
    if not file.is_file():
        raise ConfigError(f"There are no weights at {file}: name a directory that was saved")
    return msgspec.json.decode(file.read_bytes(), type=list[float])
