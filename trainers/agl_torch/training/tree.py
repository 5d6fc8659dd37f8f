"""Dividing a batch's forest into rows of limited length, with every loss term in exactly one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A subset of the forest in depth-first order that contains every node's ancestors."""

    nodes: IntArray
    """(T,) ascending."""
    ends: IntArray
    """(T,) index after the last descendant in the row: i attends to j if ``j <= i < ends[j]``."""
    terms: IntArray
    """Loss terms that are computed in this row; each term belongs to exactly one row."""

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def is_path(self) -> bool:
        """Whether the row has no branches: each token attends to all before it."""
        return bool((self.ends == len(self.nodes)).all())


@dataclass(frozen=True, slots=True)
class Forest:
    """The parents of a batch's nodes, and the node and choice of each loss term."""

    parents: IntArray
    """(N,) -1 for a root; parents precede their children, and subtrees are contiguous."""
    nodes: IntArray
    """(M,) node of each term."""
    calls: IntArray
    """(M,) index of each term's choice; all terms of a choice are in the same row."""

    def subset(self, terms: IntArray) -> Chains:
        """Return the nodes of `terms` and their ancestors as unbranched chains."""
        ends = _subtree_ends(self.parents)
        marks = np.zeros(len(self.parents) + 1, dtype=np.int64)
        np.add.at(marks, self.nodes[terms] + 1, 1)
        before = marks.cumsum()
        needed = np.flatnonzero(before[ends] > before[:-1])
        return Chains.of(self, terms, needed, ends)


@dataclass(slots=True)
class Chains:
    """Unbranched segments of a forest in depth-first order."""

    forest: Forest
    terms: IntArray
    ends: IntArray
    """For every node of the forest, the index after its last descendant."""
    nodes: list[IntArray]
    parents: list[int]
    children: list[list[int]]
    above: list[int]
    """Number of tokens in each chain's ancestors."""
    below: list[int]
    """Number of tokens in each chain and its descendants."""
    chain_of: IntArray
    """Chain of every node of the forest; -1 for nodes that no term needs."""

    @classmethod
    def of(cls, forest: Forest, terms: IntArray, needed: IntArray, ends: IntArray) -> Chains:
        parents = forest.parents[needed]
        counts = np.bincount(parents + 1, minlength=len(forest.parents) + 1)[1:]
        inner = parents >= 0
        starts = np.ones(len(needed), dtype=bool)
        starts[inner] = counts[parents[inner]] > 1
        chain_of = np.full(len(forest.parents), -1)
        chain_of[needed] = starts.cumsum() - 1
        pieces = np.split(needed, np.flatnonzero(starts)[1:])
        firsts = forest.parents[[piece[0] for piece in pieces]]
        up = [int(chain_of[first]) if first >= 0 else -1 for first in firsts]
        children: list[list[int]] = [[] for _ in pieces]
        above = [0] * len(pieces)
        below = [len(piece) for piece in pieces]
        for chain, parent in enumerate(up):
            if parent >= 0:
                children[parent].append(chain)
                above[chain] = above[parent] + len(pieces[parent])
        for chain in range(len(pieces) - 1, -1, -1):
            if up[chain] >= 0:
                below[up[chain]] += below[chain]
        return cls(forest, terms, ends, pieces, up, children, above, below, chain_of)

    @property
    def longest_path(self) -> int:
        return max(above + len(nodes) for above, nodes in zip(self.above, self.nodes, strict=True))

    def lengths(self, limit: int) -> list[int]:
        """Return the lengths of the rows that `cut` gives for `limit`."""
        return [sum(len(self.nodes[chain]) for chain in row) for row in self.cut(limit)]

    def cut(self, limit: int) -> list[list[int]]:
        """Return the chains of each row. Only a path longer than `limit` makes a row exceed it.

        A subtree that fits into a row is not divided, so that close branches share a row.
        """
        rows: list[list[int]] = []
        held: set[int] = set()
        used = 0
        for unit in self._units(limit):
            path = self._path(unit)
            added = sum(len(self.nodes[chain]) for chain in path if chain not in held)
            added += self.below[unit]
            if not rows or used + added > limit:
                rows.append([])
                held, used = set(), 0
                added = self.above[unit] + self.below[unit]
            fresh = [chain for chain in path if chain not in held] + list(self._subtree(unit))
            rows[-1].extend(fresh)
            held.update(fresh)
            used += added
        return rows

    def _units(self, limit: int) -> Iterator[int]:
        """Yield the roots of the largest subtrees that fit into a row with their ancestors."""
        stack = [chain for chain in range(len(self.nodes) - 1, -1, -1) if self.parents[chain] < 0]
        while stack:
            chain = stack.pop()
            if self.above[chain] + self.below[chain] <= limit or not self.children[chain]:
                yield chain
            else:
                stack.extend(reversed(self.children[chain]))

    def _path(self, chain: int) -> list[int]:
        """Return the chain's ancestors, root first."""
        path: list[int] = []
        while (chain := self.parents[chain]) >= 0:
            path.append(chain)
        return path[::-1]

    def _subtree(self, chain: int) -> Iterator[int]:
        stack = [chain]
        while stack:
            chain = stack.pop()
            yield chain
            stack.extend(reversed(self.children[chain]))

    def rows(self, limit: int) -> list[TreeRow]:
        """Return the rows with their nodes and terms."""
        cut = self.cut(limit)
        row_of_chain = np.full(len(self.nodes), -1)
        for index in range(len(cut) - 1, -1, -1):
            row_of_chain[cut[index]] = index
        rows_of_terms = row_of_chain[self.chain_of[self._last_nodes()]]
        rows: list[TreeRow] = []
        for index, chains in enumerate(cut):
            nodes = np.sort(np.concatenate([self.nodes[chain] for chain in chains]))
            ends = np.searchsorted(nodes, self.ends[nodes])
            rows.append(TreeRow(nodes, ends, self.terms[rows_of_terms == index]))
        return rows

    def _last_nodes(self) -> IntArray:
        """Return, for every term, the last node among the terms of its choice."""
        calls = self.forest.calls[self.terms]
        last = np.zeros(int(calls.max(initial=-1)) + 1, dtype=np.int64)
        np.maximum.at(last, calls, self.forest.nodes[self.terms])
        return last[calls]


def _subtree_ends(parents: IntArray) -> IntArray:
    """Return, for every node, the index after its last descendant."""
    sizes = [1] * len(parents)
    above: Sequence[int] = parents.tolist()
    for node in range(len(sizes) - 1, -1, -1):
        if above[node] >= 0:
            sizes[above[node]] += sizes[node]
    return np.arange(len(sizes)) + np.asarray(sizes, dtype=np.int64)
