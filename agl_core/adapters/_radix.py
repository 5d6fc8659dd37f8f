"""A radix tree over token ids, which stores every distinct prefix once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from agl_core.types import Ints


class RadixNode:
    """A sequence of tokens without a branch."""

    __slots__ = ("children", "depth", "parent", "start", "tokens")

    def __init__(self, tokens: Ints, *, parent: RadixNode | None) -> None:
        self.tokens = tokens
        self.parent = parent
        self.depth: int = len(tokens) + (parent.depth if parent else 0)
        """Number of tokens from the root to the end of this node."""
        self.children: dict[int, RadixNode] = {}
        """Children by first token, in order of insertion."""
        self.start = -1
        """Index of the first token in the batch; -1 until the tree is laid out."""


class RadixTree:
    """Token paths with shared prefixes.

    A node stays the end of the path for which `insert` returned it: when a later path branches off
    inside the node, the shared tokens move to a new parent node.
    """

    def __init__(self) -> None:
        self.root = RadixNode(array("i"), parent=None)

    def insert(self, ids: Ints, *, below: RadixNode | None = None) -> RadixNode:
        """Follow the path `ids` from the end of `below`, adding missing nodes; return its end node.

        The tree may keep a reference to `ids`.
        """
        node = below or self.root
        at = 0
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                grown = RadixNode(ids[at:] if at else ids, parent=node)
                node.children[ids[at]] = grown
                return grown
            shared = _shared_length(child.tokens, ids, at=at)
            node = child if shared == len(child.tokens) else _split(child, at=shared)
            at += shared
        return node

    def walk(self) -> Iterator[RadixNode]:
        """Yield every node except the root, depth first, children in order of insertion."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))


def ancestors(node: RadixNode) -> Iterator[RadixNode]:
    """Yield the node, then its ancestors up to the root."""
    current: RadixNode | None = node
    while current is not None:
        yield current
        current = current.parent


def _split(node: RadixNode, *, at: int) -> RadixNode:
    """Move the first `at` tokens of a node into a new parent node and return the parent."""
    parent = node.parent
    assert parent is not None  # the root holds no tokens, so it is never split
    upper = RadixNode(node.tokens[:at], parent=parent)
    parent.children[upper.tokens[0]] = upper
    node.tokens = node.tokens[at:]
    node.parent = upper
    upper.children[node.tokens[0]] = node
    return upper


def _shared_length(left: Ints, right: Ints, *, at: int) -> int:
    """Return the length of the common prefix of `left` and ``right[at:]``.

    Bisection over array slices takes linear time and compares tokens in C.
    """
    low, high = 0, min(len(left), len(right) - at)
    if left[:high] == right[at : at + high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low
