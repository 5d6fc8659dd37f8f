"""Forward passes over cached sequences: read prompts, then one token per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from agl_torch.forward import CausalModel, Rows
from agl_torch.serving.kv import SlotCache
from agl_torch.serving.prefix import PrefixStore, Tokens

_PASS_TOKENS = 4096
"""Prompt tokens, padding included, of one pass."""
_PASS_PADDING = 1.25
"""Longest of the prompts in a pass by the shortest."""
_FIXED_ROWS = 32
_FIXED_KEYS = 128
_KEY_STEP = 8


class Decoder:
    """A model and the sequences it has read, one per slot.

    With `deterministic`, a row's numbers are bitwise the same whatever shares the batch, because
    every pass has a shape that depends on the row alone: a prompt is read by itself, and a token
    in a pass of a fixed number of rows over a number of keys that follows from the row's length.
    It takes one CPU thread, since several split the rows of a product unevenly.
    """

    def __init__(
        self,
        model: CausalModel,
        config: Any,
        *,
        kv_tokens: int,
        prefix_tokens: int,
        deterministic: bool,
    ) -> None:
        self._model = model
        self._deterministic = deterministic
        dtype = next(model.module.parameters()).dtype
        self._cache = SlotCache(config, limit=kv_tokens, dtype=dtype, device=model.device)
        self._prefixes = PrefixStore(prefix_tokens, partial=not deterministic)

    def reserve(self, slots: int, length: int, *, keep: int) -> None:
        """Make room for sequences of `length` tokens; the first `keep` slots survive, that far."""
        if self._deterministic:
            slots, length = slots + _FIXED_ROWS, _fixed_keys(length)
        self._cache.reserve(slots, length, keep=keep)

    def copy(self, source: int, targets: slice | int, length: int) -> None:
        """Repeat the first `length` tokens of a slot in others."""
        self._cache.copy(source, targets, length)

    def forget(self, *, slots: bool = False) -> None:
        """Drop earlier prompts, which older weights have read, and the slots too if asked."""
        self._prefixes.clear()
        if slots:
            self._cache.release()

    def read(self, first_slot: int, prompts: Sequence[Tokens]) -> list[int]:
        """Read each prompt into a slot of its own from `first_slot` on.

        Returns:
            For each prompt the slot it went to: prompts of like length are read together.
        """
        found = [self._prefixes.find(prompt) if prompt else None for prompt in prompts]
        starts = [hit[1] if hit else 0 for hit in found]
        rest = [len(prompt) - start for prompt, start in zip(prompts, starts, strict=True)]
        order = sorted(range(len(prompts)), key=rest.__getitem__)
        slots = [0] * len(prompts)
        for slot, index in enumerate(order, start=first_slot):
            slots[index] = slot
            if (hit := found[index]) is not None:
                self._cache.write(slot, hit[0])
        unread = [index for index in order if rest[index]]
        for batch in self._passes(unread, rest, starts):
            first = slots[batch[0]]
            tokens = [prompts[index][starts[index] :] for index in batch]
            self._forward(
                slice(first, first + len(batch)),
                tokens,
                [starts[index] for index in batch],
                keys=max(starts[index] for index in batch) + max(map(len, tokens)),
                want_logits=False,
            )
        for index in unread:
            prompt = prompts[index]
            self._prefixes.add(prompt, self._cache.read(slots[index], len(prompt)))
        return slots

    def _passes(
        self, order: Sequence[int], lengths: Sequence[int], starts: Sequence[int]
    ) -> Iterator[list[int]]:
        """Cut prompts, sorted by what is left to read of them, into passes."""
        batch: list[int] = []
        for index in order:
            length = lengths[index]
            furthest = max(starts[other] for other in [*batch, index]) + length
            if batch and (
                self._deterministic
                or length * (len(batch) + 1) > _PASS_TOKENS
                or length > lengths[batch[0]] * _PASS_PADDING + _KEY_STEP
                or furthest > self._cache.length
            ):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def next_logits(self, tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Read one token per slot from 0 on; logits (R, V) of what follows.

        Args:
            lengths: Tokens each slot holds already.
        """
        if self._deterministic:
            return self._next_logits_fixed(tokens, lengths)
        keys = min(-(-(max(lengths) + 1) // _KEY_STEP) * _KEY_STEP, self._cache.length)
        slots = slice(0, len(tokens))
        return self._forward(slots, [[token] for token in tokens], lengths, keys=keys)

    def _next_logits_fixed(self, tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        order = sorted(range(len(tokens)), key=lambda index: _fixed_keys(lengths[index] + 1))
        spare = range(len(tokens), len(tokens) + _FIXED_ROWS)
        logits: Tensor | None = None
        for keys, same in groupby(order, key=lambda index: _fixed_keys(lengths[index] + 1)):
            members = list(same)
            for start in range(0, len(members), _FIXED_ROWS):
                chunk = members[start : start + _FIXED_ROWS]
                filler = list(spare[: _FIXED_ROWS - len(chunk)])
                out = self._forward(
                    torch.tensor(chunk + filler, device=self._model.device),
                    [[tokens[index]] for index in chunk] + [[0]] * len(filler),
                    [lengths[index] for index in chunk] + [0] * len(filler),
                    keys=keys,
                )
                if logits is None:
                    logits = out.new_empty((len(tokens), out.shape[-1]))
                logits[torch.tensor(chunk, device=out.device)] = out[: len(chunk)]
        assert logits is not None
        return logits

    def _forward(
        self,
        slots: slice | Tensor,
        tokens: Sequence[Sequence[int]],
        starts: Sequence[int],
        *,
        keys: int,
        want_logits: bool = True,
    ) -> Tensor:
        """Read `tokens`, padded on the right, after the `starts` tokens that the slots hold."""
        device = self._model.device
        count, width = len(tokens), max(map(len, tokens))
        ids = torch.tensor(
            [[*row, *[0] * (width - len(row))] for row in tokens], device=device
        )  # (R, T)
        begin = torch.tensor(starts, device=device)  # (R,)
        self._cache.aim(slots, begin, width, keys)
        places = torch.arange(keys, device=device)
        ends = torch.tensor([len(row) - 1 for row in tokens], device=device)
        offsets = torch.minimum(torch.arange(width, device=device), ends[:, None])
        # Padding repeats the last position, so that none lies beyond those the model knows.
        positions = begin[:, None] + offsets
        mask = (places <= positions[:, :, None])[:, None]  # (R, 1, T, K)
        last = torch.arange(count, device=device) * width + (width - 1)
        return self._model.logits(
            Rows(ids, positions, mask, places[None]),
            select=last if want_logits else last[:0],
            cache=self._cache,
        )


def _fixed_keys(length: int) -> int:
    """The smallest power of two times `_FIXED_KEYS` that holds `length` keys."""
    keys = _FIXED_KEYS
    while keys < length:
        keys *= 2
    return keys
