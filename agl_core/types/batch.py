"""The training batch: a forest of unique tokens with loss terms at its nodes."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Batch:
    """Every unique token once, and one loss term per sampled token.

    Tokens are nodes of a forest: calls of any attempt, agent or choice that share a prefix share
    its nodes. Node order is depth first, so a parent precedes its children and every subtree is one
    contiguous range. A loss term predicts `targets[j]` from node `nodes[j]`, the token before it;
    one node may have several terms. A sampled token is a node only if a token follows it.

    Arrays are plain `array.array`: ``"i"`` for ids and indices, ``"f"`` for reals; a trainer views
    them without a copy. N nodes, M loss terms, C sampled sequences.
    """

    policy: str
    step: int
    tokens: array[int]
    """(N,) token ids; an id below 0 is part of an image: -1 - i belongs to ``images[i]``."""
    parents: array[int]
    """(N,) index of the parent node, -1 for a root."""
    positions: array[int]
    """(N,) depth from the root: the position id."""
    nodes: array[int]
    """(M,) node whose output predicts the target."""
    targets: array[int]
    """(M,) sampled token id."""
    advantages: array[float]
    """(M,)"""
    weights: array[float]
    """(M,) weight of the term in the loss; the loss is divided by the sum of the weights."""
    logprobs: array[float]
    """(M,) behaviour log-probability of the target, after temperature."""
    temperatures: array[float]
    """(M,) sampling temperature of the target."""
    calls: array[int]
    """(M,) index into `call_ids`: the sequence of a sequence-level ratio."""
    call_ids: tuple[str, ...]
    """(C,) one entry per trained choice: the choices of an ``n > 1`` call repeat its id."""
    versions: tuple[int, ...]
    """(C,) policy version that sampled each call; staleness is the current version minus this."""
    agents: tuple[str, ...]
    """(C,) agent of each call."""
    groups: array[int]
    """(C,) index of each call's group, 0, 1, ...: minibatches never split a group."""
    images: tuple[str, ...] = ()
    """Content of each image as a ``data:`` URL. Different images never share a node."""
    stats: dict[str, float] = field(default_factory=dict[str, float])
    """Counts for reports: groups, attempts, calls, tokens_flat, tokens_unique, ..."""
