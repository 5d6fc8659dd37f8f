"""The training batch: a forest of unique tokens and the loss terms that sit on it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Batch:
    """Every unique token once, and one loss term per sampled token.

    Tokens are nodes of a forest: calls that share a prefix share its nodes, whichever attempt,
    agent or choice they belong to. Node order is depth first, so a parent precedes its children
    and every subtree is one contiguous range. A loss term predicts `targets[j]` from node
    `nodes[j]`, the token before it; several terms may sit on one node. The sampled tokens
    themselves are nodes too when something follows them.

    Arrays are plain `array.array`: ``"i"`` for ids and indices, ``"f"`` for reals; a trainer views
    them without a copy. N nodes, M loss terms, C sampled sequences.
    """

    policy: str
    step: int
    tokens: array[int]
    """(N,) token ids; below 0 part of an image: -1 - i is one of ``images[i]``."""
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
    """(M,) share of the term in the loss; the loss is divided by their sum."""
    logprobs: array[float]
    """(M,) behaviour log-probability of the target, after temperature."""
    temperatures: array[float]
    """(M,) temperature the target was sampled at."""
    calls: array[int]
    """(M,) index into `call_ids`: the sequence a sequence-level ratio runs over."""
    call_ids: tuple[str, ...]
    """(C,) one entry per trained choice: siblings of an ``n > 1`` call repeat its id."""
    versions: tuple[int, ...]
    """(C,) policy version each call was sampled from; staleness is the current one less these."""
    agents: tuple[str, ...]
    """(C,) agent that made each call."""
    groups: array[int]
    """(C,) index of the group each call belongs to, 0, 1, ...: minibatches never split a group."""
    images: tuple[str, ...] = ()
    """Content of each image as a ``data:`` URL. Two that differ never share a node."""
    stats: dict[str, float] = field(default_factory=dict[str, float])
    """Counts for reports: groups, attempts, calls, tokens_flat, tokens_unique, ..."""
