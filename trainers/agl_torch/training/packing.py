"""Packing of a forest's rows into the tensors of a few forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from agl_torch._forward import ForwardRows
from agl_torch.training.tree import Chains, Forest, IntArray, TreeRow

_ATTENTION_COST = 2.0
"""Time of a multiplication in attention, relative to one in a linear layer (approximate)."""
_LIMIT_GROWTH = 1.25


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost estimates of a forward pass in multiplications, from the model's shape."""

    token: float
    pair: float
    """Cost of one token attending to one key."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Costs:
        """Estimate the costs from the sizes of a model's matrices."""
        config = model.config
        names = ("embed", "lm_head", "lora_")
        token = sum(
            parameter.numel()
            for name, parameter in model.named_parameters()
            if parameter.ndim > 1 and not any(part in name for part in names)
        )
        width = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        pair = 2 * config.num_attention_heads * width * config.num_hidden_layers
        return cls(float(token), _ATTENTION_COST * pair)

    def row(self, length: int) -> float:
        return length * (self.token + length * self.pair)


@dataclass(frozen=True, slots=True)
class Pack:
    """One forward and backward pass: R rows padded to T tokens, and S loss terms."""

    rows: ForwardRows
    select: Tensor
    """(S,) indices of the terms' nodes in the R*T tokens."""
    terms: Tensor
    """(S,) indices of the terms in the batch."""


class Packer:
    """Divides a forest into rows and packs.

    Each row computes a shared prefix once, so long rows save tokens. But attention computes every
    pair of tokens in a row, masked or not, so short rows save attention. The packer takes the row
    limit with the lowest estimated cost; the result is exact for any limit.
    """

    def __init__(self, costs: Costs, *, pack_tokens: int) -> None:
        """Create a packer.

        Args:
            pack_tokens: Maximum number of tokens in a pack, padding included; only a single
                longer path exceeds it.
        """
        self._costs = costs
        self._pack_tokens = pack_tokens

    def rows(self, forest: Forest, terms: IntArray) -> list[TreeRow]:
        """Return rows that cover every node of `terms`, longest first."""
        chains = forest.subset(terms)
        return sorted(chains.rows(self._limit(chains)), key=len, reverse=True)

    def _limit(self, chains: Chains) -> int:
        best, best_cost = chains.longest_path, float("inf")
        limit = float(chains.longest_path)
        while True:
            lengths = chains.lengths(int(limit))
            cost = sum(map(self._costs.row, lengths))
            if cost < best_cost:
                best, best_cost = int(limit), cost
            limit *= _LIMIT_GROWTH
            if len(lengths) == 1 or limit > self._pack_tokens:
                return best

    def packs(self, rows: Sequence[TreeRow]) -> list[list[TreeRow]]:
        """Group rows, given longest first, so that each group stays within `pack_tokens`."""
        groups: list[list[TreeRow]] = []
        for row in rows:
            if groups and len(groups[-1][0]) * (len(groups[-1]) + 1) <= self._pack_tokens:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups


@dataclass(frozen=True, slots=True)
class Layout:
    """The arrays of a batch from which packs are built."""

    tokens: IntArray
    positions: IntArray
    nodes: IntArray

    def pack(self, rows: Sequence[TreeRow], *, device: torch.device) -> Pack:
        """Pad `rows` to the longest and compute the indices of their terms."""
        width = max(map(len, rows))
        tokens = np.zeros((len(rows), width), dtype=np.int64)
        positions = np.zeros((len(rows), width), dtype=np.int64)
        # A padding token attends to itself, so that no row of the mask is empty; no token attends
        # to padding.
        ends = np.tile(np.arange(1, width + 1), (len(rows), 1))
        select: list[IntArray] = []
        for index, row in enumerate(rows):
            length = len(row)
            tokens[index, :length] = self.tokens[row.nodes]
            positions[index, :length] = self.positions[row.nodes]
            ends[index, :length] = row.ends
            places = np.searchsorted(row.nodes, self.nodes[row.terms])
            select.append(index * width + places)
        placed = torch.from_numpy(positions).to(device)
        paths = all(row.is_path for row in rows)
        return Pack(
            rows=ForwardRows(
                tokens=torch.from_numpy(tokens).to(device),
                positions=placed,
                mask=None if paths else _mask(torch.from_numpy(ends).to(device)),
                key_positions=placed,
            ),
            select=torch.from_numpy(np.concatenate(select)).to(device),
            terms=torch.from_numpy(np.concatenate([row.terms for row in rows])).to(device),
        )


def _mask(ends: Tensor) -> Tensor:
    """Return (R, 1, T, T), True where i attends to j: j is i or an ancestor of i."""
    places = torch.arange(ends.shape[1], device=ends.device)
    before = places[None, :] <= places[:, None]
    return (before[None] & (places[None, :, None] < ends[:, None, :]))[:, None]
