"""Forward passes with a key-value cache: first the prompts, then one token per row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from agl_torch._forward import CausalModel, ForwardRows
from agl_torch.serving._kv import SlotCache
from agl_torch.serving._prefix import PrefixStore, Tokens

_PASS_TOKENS = 4096
"""Maximum number of prompt tokens, padding included, in one pass."""
_PASS_PADDING = 1.25
"""Maximum ratio of the longest prompt in a pass to the shortest."""
_FIXED_ROWS = 32
_FIXED_KEYS = 128
_KEY_STEP = 8


class Decoder:
    """A model with the key-value cache of its sequences, one per slot.

    With `deterministic`, a row's results are bitwise independent of the other rows in the batch,
    because the shape of every pass depends on the row alone: each prompt has its own pass, and a
    token's pass has a fixed number of rows and a number of keys that the row's length determines.
    This requires one CPU thread, since several threads divide the rows of a product unevenly.
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
        """Make room for sequences of `length` tokens; keep the first `keep` slots' contents."""
        if self._deterministic:
            slots, length = slots + _FIXED_ROWS, _fixed_keys(length)
        self._cache.reserve(slots, length, keep=keep)

    def copy(self, source: int, targets: slice | int, length: int) -> None:
        """Copy the first `length` tokens of a slot to other slots."""
        self._cache.copy(source, targets, length)

    def forget(self, *, slots: bool = False) -> None:
        """Drop the stored prompts, and the slots too if `slots`: older weights computed them."""
        self._prefixes.clear()
        if slots:
            self._cache.release()

    def read(self, first_slot: int, prompts: Sequence[Tokens]) -> list[int]:
        """Compute each prompt into its own slot, beginning at `first_slot`.

        Returns:
            The slot of each prompt; the order differs, as prompts of similar length share a pass.
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
        """Divide prompts, sorted by the number of their uncached tokens, into passes."""
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
        """Compute one token for each of the first R slots; return the next token's logits (R, V).

        Args:
            lengths: Number of tokens already cached in each slot.
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
        """Compute `tokens`, padded on the right, after the `starts` tokens cached in the slots."""
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
        # Padding repeats the last position, so that no position exceeds the model's limit.
        positions = begin[:, None] + offsets
        mask = (places <= positions[:, :, None])[:, None]  # (R, 1, T, K)
        last = torch.arange(count, device=device) * width + (width - 1)
        return self._model.logits(
            ForwardRows(ids, positions, mask, places[None]),
            select=last if want_logits else last[:0],
            cache=self._cache,
        )


def _fixed_keys(length: int) -> int:
    """Return `length` rounded up to `_FIXED_KEYS` times a power of two."""
    keys = _FIXED_KEYS
    while keys < length:
        keys *= 2
    return keys
