"""The common text of several texts, with placeholders where they differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Final, NamedTuple

__all__ = ["Skeleton", "align", "words"]

_TOKEN: Final = re.compile(r"\w+|\s+|[^\w\s]")
_GAP: Final = "\0gap"
"""Stands where texts differ; no token of a text equals it."""
_SHORT: Final = 2
"""Number of words of a short constant passage."""
_MOST_IN_A_RUN: Final = 4
"""Number of differing passages that may follow each other with short constant ones between them."""
_MOST_PAIRS: Final = 4_000_000
"""Product of the numbers of tokens of two passages above which they are not compared."""


class Skeleton(NamedTuple):
    """The constant passages of texts, in order; a differing passage stands between two of them."""

    literals: list[str]
    """The first and the last one are empty if the texts begin or end differently."""
    values: list[list[str]]
    """The differing passages of each text, one fewer than `literals`."""


def words(text: str) -> int:
    """Return the number of words in a text."""
    return len(re.findall(r"\w+", text))


def align(texts: Sequence[str]) -> Skeleton:
    """Return the constant passages of texts, which begin and end at word borders.

    The longest common subsequences of words, spaces and signs are found text by text: first of
    whole lines, then between them. A passage between two differing ones is constant only if it has
    a word and is at least as long as the longest value on one of its sides: a short word that is
    equal by chance within long values is part of the value. For the same reason more than four
    differing passages with at most two words between each are one. Signs before the first differing
    passage are part of it too. A passage with one value in all texts is constant.

    Args:
        texts: Different texts, at least one.
    """
    skeleton = _TOKEN.findall(texts[0])
    for text in texts[1:]:
        skeleton = _merged(skeleton, _TOKEN.findall(text))
    literals = _literals(skeleton)
    while True:
        if not words(literals[0]) and len(literals) > 1:
            literals[0] = ""
        values = [_values(literals, text) for text in texts]
        columns = [[row[column] for row in values] for column in range(len(literals) - 1)]
        if (column := _constant(columns)) is not None:
            joined = literals[column] + columns[column][0] + literals[column + 1]
            literals[column : column + 2] = [joined]
        elif (run := _run(literals)) is not None:
            del literals[run[0] : run[1]]
        elif (island := _weakest(literals, columns)) is not None:
            del literals[island]
        else:
            return Skeleton(literals, values)


def _literals(skeleton: Iterable[str]) -> list[str]:
    literals = [""]
    for token in skeleton:
        if token is _GAP:
            literals.append("")
        else:
            literals[-1] += token
    return literals


def _constant(columns: Sequence[Sequence[str]]) -> int | None:
    return next((at for at, column in enumerate(columns) if len(set(column)) == 1), None)


def _run(literals: Sequence[str]) -> tuple[int, int] | None:
    """Return the first run of short passages between too many differing ones; None without one."""
    start = 1
    for at in range(1, len(literals)):
        if at == len(literals) - 1 or words(literals[at]) > _SHORT:
            if at - start >= _MOST_IN_A_RUN:
                return start, at
            start = at + 1
    return None


def _weakest(literals: Sequence[str], columns: Sequence[Sequence[str]]) -> int | None:
    """Return the passage that is least likely to be constant; None if all are."""
    weakest, least = None, 1.0
    for at in range(1, len(literals) - 1):
        shorter = min(max(map(len, columns[side])) for side in (at - 1, at))
        strength = len(literals[at]) / max(shorter, 1) if words(literals[at]) else 0.0
        if strength < least:
            weakest, least = at, strength
    return weakest


def _values(literals: Sequence[str], text: str) -> list[str]:
    """Return the passages of a text between the constant ones, each as short as possible."""
    at = len(literals[0])
    found: list[str] = []
    for literal in literals[1:-1]:
        end = _at_borders(text, literal, at)
        found.append(text[at:end])
        at = end + len(literal)
    if len(literals) > 1:
        found.append(text[at : len(text) - len(literals[-1])])
    return found


def _at_borders(text: str, part: str, at: int) -> int:
    while True:
        at = text.index(part, at)
        if not (_inside_word(text, at) or _inside_word(text, at + len(part))):
            return at
        at += 1


def _inside_word(text: str, at: int) -> bool:
    return 0 < at < len(text) and re.fullmatch(r"\w\w", text[at - 1 : at + 1]) is not None


def _merged(skeleton: list[str], tokens: list[str]) -> list[str]:
    """Return the common tokens, with a gap wherever a text or the skeleton has others."""
    merged: list[str] = []
    before, after = 0, 0
    for start, other, count in [*_blocks(skeleton, tokens), (len(skeleton), len(tokens), 0)]:
        if (start > before or other > after) and merged[-1:] != [_GAP]:
            merged.append(_GAP)
        merged += skeleton[start : start + count]
        before, after = start + count, other + count
    return merged


def _blocks(one: list[str], two: list[str]) -> Iterator[tuple[int, int, int]]:
    """Yield equal passages: position in both and number of tokens; equal lines come first."""
    same = _common_start(one, two)
    yield 0, 0, same
    tail = _common_start(one[same:][::-1], two[same:][::-1])
    lines, others = _lines(one[same : len(one) - tail]), _lines(two[same : len(two) - tail])
    starts, other_starts = _starts(lines, same), _starts(others, same)
    blocks = SequenceMatcher(None, lines, others, autojunk=False).get_matching_blocks()
    for left, right in pairwise([(0, 0, 0), *blocks]):
        at, other = starts[left[0] + left[2]], other_starts[left[1] + left[2]]
        end, other_end = starts[right[0]], other_starts[right[1]]
        for start, begin, count in _token_blocks(one[at:end], two[other:other_end]):
            yield at + start, other + begin, count
        yield end, other_end, starts[right[0] + right[2]] - end
    yield len(one) - tail, len(two) - tail, tail


def _token_blocks(one: list[str], two: list[str]) -> list[tuple[int, int, int]]:
    if len(one) * len(two) > _MOST_PAIRS:
        return []
    return [*SequenceMatcher(None, one, two, autojunk=False).get_matching_blocks()]


def _common_start(one: Sequence[str], two: Sequence[str]) -> int:
    differing = (at for at, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1])
    return next(differing, min(len(one), len(two)))


def _lines(tokens: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the tokens by line; a line ends with the space that has a line break."""
    lines: list[tuple[str, ...]] = []
    line: list[str] = []
    for token in tokens:
        line.append(token)
        if "\n" in token:
            lines.append(tuple(line))
            line = []
    return [*lines, tuple(line)] if line else lines


def _starts(lines: Sequence[Sequence[str]], start: int) -> list[int]:
    """Return the position at which each line begins, and the position after the last."""
    starts = [start]
    for line in lines:
        starts.append(starts[-1] + len(line))
    return starts
