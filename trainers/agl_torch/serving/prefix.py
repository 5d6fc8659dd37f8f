"""Keys and values of earlier prompts, found again by their longest common beginning."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from torch import Tensor

_BLOCK = 16
"""Beginnings are compared at multiples of this many tokens."""

Tokens = tuple[int, ...]


class PrefixStore:
    """The most recently used prompts within a budget of tokens."""

    def __init__(self, budget: int, *, partial: bool) -> None:
        """Create an empty store.

        Args:
            budget: Tokens kept in all; 0 keeps nothing.
            partial: Also find beginnings. A part that was computed within another prompt can
                differ in its last bits from one computed alone.
        """
        self._budget = budget
        self._partial = partial
        self._entries: OrderedDict[Tokens, Tensor] = OrderedDict()
        self._blocks: dict[int, Tokens] = {}
        self._used = 0

    def find(self, tokens: Tokens) -> tuple[Tensor, int] | None:
        """Keys and values (..., length, D) of `tokens` or of a beginning, and its length."""
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
        """Keep a prompt's keys and values, dropping the longest unused."""
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
        """Forget everything: the weights have changed."""
        self._entries.clear()
        self._blocks.clear()
        self._used = 0


def _beginnings(tokens: Tokens) -> Iterator[tuple[int, int]]:
    digest = 0
    for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
        digest = hash((digest, tokens[end - _BLOCK : end]))
        yield end, digest


def _common(left: Sequence[int], right: Sequence[int], known: int) -> int:
    """Length of the common beginning, of which `known` tokens are known."""
    limit = min(len(left), len(right))
    while known < limit and left[known] == right[known]:
        known += 1
    return known
