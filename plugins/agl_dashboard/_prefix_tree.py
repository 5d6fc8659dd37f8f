"""The prefix tree of calls: every shared part once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePath:
    """One call as a path of tokens."""

    ids: Sequence[int]
    call_id: str
    rollout_id: str
    agent: str
    choice: int = 0
    advantage: float | None = None
    """Mean over the trained tokens; None if not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreePart:
    """Tokens that the same calls share, up to where they differ or one ends."""

    depth: int
    """Number of parts before it."""
    start: int
    """Index of its first token from the root."""
    ids: Sequence[int]
    calls: int
    """Number of calls that begin with it."""
    ends: list[TreePath]
    """The calls that end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """The parts, each before those that follow it."""

    parts: list[TreePart]
    flat: int
    """Sum of the lengths of all paths."""
    unique: int
    """Number of tokens of the tree, each of which is computed once."""
    longest: int


def prefix_tree(paths: Sequence[TreePath]) -> PrefixTree:
    """Lay calls out as a tree; the largest branches come first."""
    ordered = sorted(paths, key=lambda path: list(path.ids))
    parts = list[TreePart]()
    stack: list[tuple[list[TreePath], int, int]] = [
        (branch, 0, 0) for branch in reversed(_branches(ordered, 0))
    ]
    while stack:
        branch, start, depth = stack.pop()
        end = _shared(branch[0].ids, branch[-1].ids, start)
        ends = [path for path in branch if len(path.ids) == end]
        ids = branch[0].ids[start:end]
        parts.append(TreePart(depth=depth, start=start, ids=ids, calls=len(branch), ends=ends))
        longer = [path for path in branch if len(path.ids) > end]
        stack += [(each, end, depth + 1) for each in reversed(_branches(longer, end))]
    lengths = [len(path.ids) for path in ordered]
    return PrefixTree(
        parts=parts,
        flat=sum(lengths),
        unique=sum(len(part.ids) for part in parts),
        longest=max(lengths, default=0),
    )


def _branches(ordered: Sequence[TreePath], at: int) -> list[list[TreePath]]:
    """Group sorted paths by the token at an index; those without one are left out."""
    found: dict[int, list[TreePath]] = {}
    for path in ordered:
        if len(path.ids) > at:
            found.setdefault(path.ids[at], []).append(path)
    return sorted(found.values(), key=len, reverse=True)


def _shared(first: Sequence[int], last: Sequence[int], start: int) -> int:
    """Return the index of the first token at which two paths differ, or one ends."""
    end = start
    for one, other in zip(first[start:], last[start:], strict=False):
        if one != other:
            break
        end += 1
    return end
