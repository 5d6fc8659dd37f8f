"""Rows: linear token sequences that contain every loss term of a batch exactly once."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agl_core.errors import TrainingError
from agl_core.types import Batch
from agl_verl.convert._forest import ForestIndex, IntArray, PathSegment, Reals

Level = Literal["merged", "transition"]
"""``transition``: one row per trained choice. ``merged``: the minimum number of rows."""

Overlong = Literal["error", "drop"]
"""Handling of a choice whose prompt and response together exceed the limit."""

TOO_LONG = "row_too_long"


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One sequence for verl: a prompt, then a response of T tokens, some of them trained.

    The response begins with the first trained token. Its untrained tokens are context: tokens of
    the environment, of other agents, and of choices trained in another row. They are 0 in every
    array.
    """

    prompt: IntArray
    """Token ids, at least one."""
    response: IntArray
    """(T,) token ids."""
    mask: NDArray[np.bool_]
    """(T,) whether this row trains the token."""
    advantages: Reals
    """(T,)"""
    weights: Reals
    """(T,) weights in the loss, before any scaling."""
    logprobs: Reals
    """(T,) log-probabilities recorded at sampling."""
    temperature: float
    calls: tuple[int, ...]
    """Indices into the batch's `call_ids`, root first."""

    def __len__(self) -> int:
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The rows of a batch, and the number of choices that were dropped."""

    rows: list[TrainingRow]
    by_agent: dict[str, int]
    """Number of rows that train the agent; a merged row may train several agents."""
    lost: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Number of dropped choices by agent and cause."""

    @property
    def weight(self) -> float:
        """Sum of the weights of the rows' terms, by which their loss is divided.

        It does not include dropped choices, so the remaining ones have a larger share in the
        loss. 0 if nothing is left to train.
        """
        return float(sum(row.weights.sum(dtype=np.float64) for row in self.rows))


def rows_of(
    batch: Batch,
    *,
    level: Level,
    max_tokens: int | None,
    overlong: Overlong,
    groups: Collection[int] | None = None,
) -> TrainingRows:
    """Divide a batch into rows.

    Every loss term is in exactly one row, and all terms of a choice are in the same row. A merged
    row chains choices of equal temperature whose paths continue each other, also of different
    agents, attempts or groups. The number of rows is the minimum that such chains allow.

    Choices that are too long are dropped before chaining. This does not change the credit of
    others: baselines and advantages were computed from all attempts of the group.

    Args:
        batch: The batch to train on.
        level: Whether choices share rows.
        max_tokens: Maximum length of a row; None for no limit.
        overlong: Handling of longer choices; `TrainingRows.lost` counts dropped ones.
        groups: Indices of the groups to train on; None for all.

    Raises:
        TrainingError: the batch has no loss terms, has numbers that are not finite, or a choice is
            too long and `overlong` is ``error``.
    """
    forest = ForestIndex(batch)
    kept, lost = _fitting(forest.spans(groups), batch, max_tokens=max_tokens, overlong=overlong)
    chains = _chains(kept) if level == "merged" else [[span] for span in kept]
    agents = Counter(agent for chain in chains for agent in {span.agent for span in chain})
    return TrainingRows([_row(forest, chain) for chain in chains], dict(agents), lost)


def _fitting(
    spans: Sequence[PathSegment], batch: Batch, *, max_tokens: int | None, overlong: Overlong
) -> tuple[list[PathSegment], dict[str, dict[str, int]]]:
    """Return the spans that fit. A row ends with its last choice, so it fits too."""
    if max_tokens is None:
        return list(spans), {}
    lost: dict[str, dict[str, int]] = {}
    for span in spans:
        if span.length <= max_tokens:
            continue
        if overlong == "error":
            raise TrainingError(
                f"Call {batch.call_ids[span.call]!r} of agent {span.agent!r} is {span.length} "
                f"tokens long with its response, but rows hold {max_tokens}: shorten its prompt, "
                f"raise the limit, or drop such calls"
            )
        causes = lost.setdefault(span.agent, {TOO_LONG: 0})
        causes[TOO_LONG] += 1
    return [span for span in spans if span.length <= max_tokens], lost


def _chains(spans: Sequence[PathSegment]) -> list[list[PathSegment]]:
    """Return a minimum number of chains in which each span starts below the previous one's end.

    A span's possible followers start in the subtree of its end. Two such sets are either disjoint
    or nested. Therefore, if the deepest ends choose first, the number of spans without a follower
    is minimal for any choice of followers.
    """
    waiting: dict[float, list[tuple[int, int]]] = defaultdict(list)
    for index, span in enumerate(spans):
        waiting[span.temperature].append((span.first, index))
    for pool in waiting.values():
        pool.sort()
    followers: dict[int, int] = {}
    ending = [index for index, span in enumerate(spans) if span.end >= 0]
    for index in sorted(ending, key=lambda at: spans[at].end, reverse=True):
        span = spans[index]
        pool = waiting[span.temperature]
        start, stop = bisect_left(pool, (span.end, -1)), bisect_left(pool, (span.below, -1))
        if start < stop:
            chosen = min(range(start, stop), key=lambda at: _distance(spans, index, pool[at][1]))
            followers[index] = pool.pop(chosen)[1]
    heads = sorted(set(range(len(spans))) - set(followers.values()))
    return [[spans[at] for at in _follow(head, followers)] for head in heads]


def _distance(spans: Sequence[PathSegment], index: int, other: int) -> tuple[bool, bool, int]:
    """Return a sort key that prefers the same agent's next call."""
    return (spans[other].agent != spans[index].agent, other < index, other)


def _follow(head: int, followers: dict[int, int]) -> list[int]:
    chain = [head]
    while (follower := followers.get(chain[-1])) is not None:
        chain.append(follower)
    return chain


def _row(forest: ForestIndex, chain: Sequence[PathSegment]) -> TrainingRow:
    last = chain[-1]
    tokens = np.append(forest.path(last.last), forest.targets[last.terms[-1]])
    start = int(forest.depths[chain[0].first]) + 1
    length = len(tokens) - start
    streams = {name: np.zeros(length, np.float32) for name in ("advantages", "weights", "logprobs")}
    mask = np.zeros(length, np.bool_)
    for span in chain:
        places = forest.depths[forest.nodes[span.terms]] + 1 - start
        mask[places] = True
        for name, stream in streams.items():
            stream[places] = getattr(forest, name)[span.terms]
    return TrainingRow(
        prompt=tokens[:start],
        response=tokens[start:],
        mask=mask,
        temperature=last.temperature,
        calls=tuple(span.call for span in chain),
        **streams,
    )
