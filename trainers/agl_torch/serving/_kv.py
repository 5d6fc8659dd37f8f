"""Key-value cache of the running sequences, in one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

_LENGTH_STEP = 128
"""The cache grows in steps of this many tokens, so that not every token copies it."""


@dataclass(frozen=True, slots=True)
class Window:
    """The slots and keys that the next forward pass writes and reads."""

    rows: slice | Tensor
    """The slots, one per row of the pass."""
    write: Tensor
    """(R * H * T,) index of each new key in a layer's flattened (S * H * L) keys."""
    length: int
    """Number of keys that each row attends to."""


class SlotCache(Cache):
    """Keys and values by slot; each slot has one sequence of its own length.

    Replaces transformers' own cache; the caller provides masks and positions.
    """

    def __init__(
        self, config: Any, *, limit: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Create a cache without slots.

        Args:
            limit: Maximum of slots times length when `reserve` allocates more than requested.
        """
        super().__init__(layers=[])
        self._limit = limit
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self._shape = (config.num_hidden_layers, heads, width)
        self._kv = torch.empty(
            (config.num_hidden_layers, 2, 0, heads, 0, width), dtype=dtype, device=device
        )
        self._window: Window | None = None

    @property
    def slots(self) -> int:
        return self._kv.shape[2]

    @property
    def length(self) -> int:
        """Number of tokens that fit into one slot."""
        return self._kv.shape[4]

    def reserve(self, slots: int, length: int, *, keep: int) -> None:
        """Make room for `slots` sequences of `length` tokens.

        The contents of the first `keep` slots are kept, up to `length` tokens.
        """
        if slots <= self.slots and length <= self.length:
            return
        layers, heads, width = self._shape
        slots, length = self._room(slots, length)
        kept = min(length, self.length)
        # Zeros: a masked key or value that is not finite would make the weighted sum NaN.
        grown = self._kv.new_zeros((layers, 2, slots, heads, length, width))
        grown[:, :, :keep, :, :kept] = self._kv[:, :, :keep, :, :kept]
        self._kv = grown

    def _room(self, slots: int, length: int) -> tuple[int, int]:
        """Return the slots and length to grow to: with a reserve, as far as the limit allows."""
        stepped = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        many = self.slots if slots <= self.slots else max(slots, 2 * self.slots)
        long = max(self.length, stepped)
        if many * long <= self._limit:
            return many, long
        if slots == 1:
            return 1, stepped
        return slots, max(length, min(stepped, self._limit // slots))

    def release(self) -> None:
        """Free the memory."""
        layers, heads, width = self._shape
        self._kv = self._kv.new_empty((layers, 2, 0, heads, 0, width))

    def aim(self, rows: slice | Tensor, starts: Tensor, tokens: int, length: int) -> None:
        """Set the slots, and the position in each, for the next pass's `tokens` new keys."""
        _, heads, _ = self._shape
        device = self._kv.device
        slots = (
            torch.arange(rows.start, rows.stop, device=device) if isinstance(rows, slice) else rows
        )
        lanes = slots[:, None] * heads + torch.arange(heads, device=device)  # (R, H)
        places = starts[:, None] + torch.arange(tokens, device=device)  # (R, T)
        write = lanes[:, :, None] * self.length + places[:, None, :]
        self._window = Window(rows, write.flatten(), length)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values (R, H, T, D) and return all that the rows attend to."""
        window = self._window
        assert window is not None, "aim() comes before the forward pass"
        keys, values = self._kv[layer_idx]
        width = keys.shape[-1]
        keys.view(-1, width).index_copy_(0, window.write, key_states.reshape(-1, width))
        values.view(-1, width).index_copy_(0, window.write, value_states.reshape(-1, width))
        rows, length = window.rows, window.length
        return keys[rows, :, :length], values[rows, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002 (transformers' signature)
        return 0

    def read(self, slot: int, length: int) -> Tensor:
        """Return a copy (layers, 2, H, length, D) of a slot's first tokens."""
        return self._kv[:, :, slot, :, :length].clone()

    def write(self, slot: int, kv: Tensor) -> None:
        """Write the result of `read` to the beginning of a slot."""
        self._kv[:, :, slot, :, : kv.shape[3]] = kv

    def copy(self, source: int, targets: slice | int, length: int) -> None:
        """Copy a slot's first tokens to other slots."""
        if isinstance(targets, int):
            self._kv[:, :, targets, :, :length] = self._kv[:, :, source, :, :length]
        else:
            self._kv[:, :, targets, :, :length] = self._kv[:, :, source, None, :, :length]
