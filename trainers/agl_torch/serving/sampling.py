"""Sampling of tokens from logits, with an independent random stream per answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_UNIFORM_BITS = 48
"""Fewer than a double's 53, so that a uniform number times a total stays less than the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one request."""

    temperature: float = 1.0
    """0 takes the most likely token; log-probabilities are then those of temperature 1."""
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int
    top_logprobs: int = 0
    """Number of most likely tokens to report with each sampled one."""


def uniforms(seed: int | None, choice: int) -> random.Random:
    """Return the random stream of one choice, determined by both arguments if `seed` is set."""
    return random.Random(None if seed is None else f"{seed}/{choice}")  # noqa: S311


def draw(stream: random.Random) -> float:
    """Return the next number in [0, 1)."""
    return stream.getrandbits(_UNIFORM_BITS) / (1 << _UNIFORM_BITS)


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row."""

    tokens: list[int]
    logprobs: list[float]
    """Computed after temperature, before `top_p`."""
    tops: list[list[tuple[int, float]]]
    """The most likely tokens per row; empty if not requested."""


def sample(logits: Tensor, rows: Sequence[SamplingParams], numbers: Sequence[float]) -> Sampled:
    """Choose a token per row of `logits` (R, V) by inverting the row's distribution function.

    Args:
        numbers: One uniform number in [0, 1) per row.

    Raises:
        FloatingPointError: the logits of some rows are NaN or infinite; gives their number.
    """
    device = logits.device
    temperatures = torch.tensor([row.temperature or 1.0 for row in rows], device=device)
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    # Searching in NaN gives an index out of range, which on a GPU would abort the process.
    broken = int(logprobs.isnan().any(-1).sum())
    if broken:
        raise FloatingPointError(
            f"the logits of {broken} of {len(rows)} answers are NaN or infinite"
        )
    probabilities = logprobs.double().exp_()
    if any(row.top_p < 1 for row in rows):
        limits = torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device)
        probabilities = _nucleus(probabilities, limits)
    cumulative = probabilities.cumsum(-1)
    points = torch.tensor(numbers, dtype=torch.float64, device=device) * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, points[:, None], right=True)
    if any(row.temperature == 0 for row in rows):
        greedy = torch.tensor([row.temperature == 0 for row in rows], device=device)
        tokens = torch.where(greedy[:, None], logits.argmax(-1, keepdim=True), tokens)
    chosen = logprobs.gather(1, tokens)
    return Sampled(tokens[:, 0].tolist(), chosen[:, 0].tolist(), _tops(logprobs, rows))


def _nucleus(probabilities: Tensor, limits: Tensor) -> Tensor:
    """Keep the most likely tokens of each row until their total reaches the row's limit."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = ordered.masked_fill(before >= limits[:, None], 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, kept)


def _tops(logprobs: Tensor, rows: Sequence[SamplingParams]) -> list[list[tuple[int, float]]]:
    most = max(row.top_logprobs for row in rows)
    if most == 0:
        return [[] for _ in rows]
    values, tokens = logprobs.topk(min(most, logprobs.shape[-1]), dim=-1)
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [
        list(zip(ids[: row.top_logprobs], likely[: row.top_logprobs], strict=True))
        for row, (ids, likely) in zip(rows, pairs, strict=True)
    ]
