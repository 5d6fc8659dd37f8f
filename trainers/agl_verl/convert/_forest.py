"""Paths and subtrees of a batch's forest, and the loss terms of its choices."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agl_core.errors import TrainingError
from agl_core.types import Batch

IntArray = NDArray[np.int64]
Reals = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PathSegment:
    """The loss terms of one trained choice, a segment of one root-to-leaf path."""

    call: int
    """Index into the batch's `call_ids`."""
    agent: str
    terms: IntArray
    """Indices of the loss terms, in order of depth."""
    temperature: float
    """1 for a greedily sampled choice: its log-probabilities are recorded at temperature 1."""
    first: int
    """Node that predicts the first target."""
    last: int
    """Node that predicts the last target."""
    length: int
    """Number of tokens of the whole path, including the last target."""
    end: int
    """Node of the last target; -1 if the forest has none."""
    below: int
    """Index after the last descendant of `end`."""


class ForestIndex:
    """The validated and indexed arrays of a batch."""

    def __init__(self, batch: Batch) -> None:
        """Validate and index a batch's arrays.

        Raises:
            TrainingError: the batch has no loss terms, or has numbers that are not finite.
        """
        if not batch.nodes:
            raise TrainingError(f"Batch {batch.step} of policy {batch.policy!r} has no loss terms")
        self.batch = batch
        self.tokens = _ints(batch.tokens)
        self.nodes = _ints(batch.nodes)
        self.targets = _ints(batch.targets)
        self.advantages = self._reals("advantages")
        self.weights = self._reals("weights")
        self.logprobs = self._reals("logprobs")
        self._temperatures = self._reals("temperatures")
        self.depths = _ints(batch.positions)
        self._parents = _ints(batch.parents)
        index = np.arange(len(self._parents))
        breaks = self._parents != index - 1
        self._turns = np.flatnonzero(breaks)
        # In depth-first order a path consists of a few runs of consecutive nodes.
        self._starts = np.maximum.accumulate(np.where(breaks, index, 0))

    def path(self, node: int) -> IntArray:
        """Return the token ids from the root to `node`."""
        pieces: list[IntArray] = []
        while node >= 0:
            start = int(self._starts[node])
            pieces.append(self.tokens[start : node + 1])
            node = int(self._parents[start])
        return np.concatenate(pieces[::-1])

    def spans(self, groups: Collection[int] | None) -> list[PathSegment]:
        """Return the choices of `groups`, or of all groups, in the order of the batch's calls."""
        calls = _ints(self.batch.calls)
        order = np.lexsort((self.depths[self.nodes], calls))
        bounds = np.flatnonzero(np.diff(calls[order])) + 1
        pieces = np.split(order, bounds)
        wanted = [
            terms
            for terms in pieces
            if groups is None or self.batch.groups[int(calls[terms[0]])] in groups
        ]
        ends = self._ends([int(terms[-1]) for terms in wanted])
        return [self._span(terms, int(calls[terms[0]]), ends) for terms in wanted]

    def _span(self, terms: IntArray, call: int, ends: dict[tuple[int, int], int]) -> PathSegment:
        last = int(self.nodes[terms[-1]])
        end = ends.get((last, int(self.targets[terms[-1]])), -1)
        temperature = float(self._temperatures[terms[0]])
        return PathSegment(
            call=call,
            agent=self.batch.agents[call],
            terms=terms,
            temperature=temperature if temperature > 0 else 1.0,
            first=int(self.nodes[terms[0]]),
            last=last,
            length=int(self.depths[last]) + 2,
            end=end,
            below=self._below(end) if end >= 0 else -1,
        )

    def _ends(self, terms: list[int]) -> dict[tuple[int, int], int]:
        """Return a mapping from (node, token) to the node's child, for the nodes of `terms`."""
        children = np.flatnonzero(np.isin(self._parents, self.nodes[terms]))
        return {
            (int(self._parents[child]), int(self.tokens[child])): int(child) for child in children
        }

    def _below(self, node: int) -> int:
        """Return the index after the last node of the subtree of `node`."""
        later = self._turns[np.searchsorted(self._turns, node, side="right") :]
        outside = self.depths[later] <= self.depths[node]
        return int(later[np.argmax(outside)]) if outside.any() else len(self.tokens)

    def _reals(self, name: str) -> Reals:
        batch = self.batch
        values = np.asarray(getattr(batch, name), dtype=np.float32)
        if not np.isfinite(values).all():
            call = batch.call_ids[batch.calls[int(np.flatnonzero(~np.isfinite(values))[0])]]
            raise TrainingError(
                f"Batch {batch.step} of policy {batch.policy!r}: {name} of call {call!r} are "
                f"not finite; the reward or the recorded log-probabilities are broken"
            )
        return values


def _ints(values: object) -> IntArray:
    return np.asarray(values, dtype=np.int64)
