"""Keys and values of earlier prompts, found by their longest common prefix."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from torch import Tensor

_BLOCK = 16
"""Prefixes are indexed at multiples of this many tokens."""

Tokens = tuple[int, ...]


class PrefixStore:
    """A least-recently-used store of prompts with a limit on tokens."""

    def __init__(self, budget: int, *, partial: bool) -> None:
        """Create an empty store.

        Args:
            budget: Maximum number of stored tokens; 0 stores nothing.
            partial: Also find common prefixes. Keys of a prefix computed within another prompt can
                differ in their last bits from those computed alone.
        """
        self._budget = budget
        self._partial = partial
        self._entries: OrderedDict[Tokens, Tensor] = OrderedDict()
        self._blocks: dict[int, Tokens] = {}
        self._used = 0

    def find(self, tokens: Tokens) -> tuple[Tensor, int] | None:
        """Return keys and values (..., length, D) of `tokens` or of a prefix, and its length."""
        if tokens in self._entries:
            self._entries.move_to_end(tokens)
            return self._entries[tokens], len(tokens)
        if not self._partial:
            return None
        found: tuple[Tokens, int] | None = None
        for length, digest in _beginnings(tokens):
            entry = self._blocks.get(digest)
            if entry is None or entry[:length] != tokens[:length]:
                break
            found = entry, length
        if found is None:
            return None
        entry, length = found
        length = _common(entry, tokens, length)
        self._entries.move_to_end(entry)
        return self._entries[entry][..., :length, :], length

    def add(self, tokens: Tokens, kv: Tensor) -> None:
        """Store a prompt's keys and values; evict the least recently used."""
        if len(tokens) > self._budget or not tokens or tokens in self._entries:
            return
        self._entries[tokens] = kv
        self._used += len(tokens)
        if self._partial:
            self._blocks.update((digest, tokens) for _, digest in _beginnings(tokens))
        while self._used > self._budget:
            oldest, _ = self._entries.popitem(last=False)
            self._used -= len(oldest)
            for _, digest in _beginnings(oldest):
                if self._blocks.get(digest) == oldest:
                    del self._blocks[digest]

    def clear(self) -> None:
        """Drop all entries: the weights have changed."""
        self._entries.clear()
        self._blocks.clear()
        self._used = 0


def _beginnings(tokens: Tokens) -> Iterator[tuple[int, int]]:
    digest = 0
    for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
        digest = hash((digest, tokens[end - _BLOCK : end]))
        yield end, digest


def _common(left: Sequence[int], right: Sequence[int], known: int) -> int:
    """Return the length of the common prefix, which is at least `known` tokens."""
    limit = min(len(left), len(right))
    while known < limit and left[known] == right[known]:
        known += 1
    return known
