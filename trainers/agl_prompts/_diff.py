"""Differences between two texts, word by word."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final, Literal

import msgspec

__all__ = ["MARKS", "DiffPart", "difference"]

DiffKind = Literal["same", "removed", "added"]
_WORD: Final = re.compile(r"\{?\w+\}?|\n|[^\S\n]+|[^\w\s]")
_LONG: Final = 4_000_000
"""Largest number of pairs of words that are all compared."""
MARKS: Final[dict[DiffKind, tuple[str, str]]] = {
    "same": ("", ""),
    "removed": ("[-", "-]"),
    "added": ("{+", "+}"),
}
"""Texts before and after a piece, which show its kind without colours."""


class DiffPart(msgspec.Struct, frozen=True):
    """A part of the first text, of the second, or of both."""

    kind: DiffKind
    text: str


def difference(before: str, after: str) -> list[DiffPart]:
    """Return the pieces that make both texts.

    The pieces that are ``same`` or ``removed`` make the first text, those that are ``same`` or
    ``added`` the second. A word is never divided, nor a ``{name}``. Spaces alone are no piece of their own between two
    changes, so that a changed phrase is shown as one.
    """
    old, new = _WORD.findall(before), _WORD.findall(after)
    # Frequent words of long texts are not compared: it could take minutes.
    long = len(old) * len(new) > _LONG
    matcher = SequenceMatcher(str.isspace, old, new, autojunk=long)
    changes: list[tuple[str, str]] = []
    """Removed and added text, by turns with the unchanged text after them."""
    kept: list[str] = []
    at_old = at_new = 0
    for begin, start, size in matcher.get_matching_blocks():
        same = "".join(new[start : start + size])
        removed, added = "".join(old[at_old:begin]), "".join(new[at_new:start])
        if changes and (not kept[-1].strip(" ") and (removed or added)):
            space, (was, now) = kept.pop(), changes.pop()
            removed, added = was + space + removed, now + space + added
        changes.append((removed, added))
        kept.append(same)
        at_old, at_new = begin + size, start + size
    return list(_pieces(changes, kept))


def _pieces(changes: Iterable[tuple[str, str]], kept: Iterable[str]) -> Iterable[DiffPart]:
    for (removed, added), same in zip(changes, kept, strict=True):
        end = _common_space(removed, added)
        if removed[: len(removed) - len(end)]:
            yield DiffPart("removed", removed[: len(removed) - len(end)])
        if added[: len(added) - len(end)]:
            yield DiffPart("added", added[: len(added) - len(end)])
        if end + same:
            yield DiffPart("same", end + same)


def _common_space(removed: str, added: str) -> str:
    """Return the white space with which both texts end."""
    length = 0
    for one, other in zip(reversed(removed), reversed(added), strict=False):
        if one != other or not one.isspace():
            break
        length += 1
    return removed[len(removed) - length :]
