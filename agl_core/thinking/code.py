"""Markdown code, in which a tag is no tag."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

OPENING_FENCE: Final = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_INDENT: Final = 3
"""Spaces that a fence may be indented by."""
_TICKS: Final = re.compile(r"`+")


def closes_fence(line: str, fence: str) -> bool:
    """Whether the line ends the block that was opened with `fence`."""
    bare = line.strip()
    indent = len(line) - len(line.lstrip(" "))
    return len(bare) >= len(fence) and set(bare) == {fence[0]} and indent <= _INDENT


def code_spans(line: str) -> list[tuple[int, int]]:
    """Places of inline code on one line: runs of backticks that another of their length closes."""
    if "`" not in line:
        return []
    runs = [(match.start(), match.end()) for match in _TICKS.finditer(line)]
    of_length: dict[int, list[int]] = defaultdict(list)
    for position, (start, end) in enumerate(runs):
        of_length[end - start].append(position)
    spans: list[tuple[int, int]] = []
    position = 0
    while position < len(runs):
        start, end = runs[position]
        alike = of_length[end - start]
        following = bisect_right(alike, position)
        if following < len(alike):
            position = alike[following]
            spans.append((start, runs[position][1]))
        position += 1
    return spans


def inside(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    place = bisect_right(spans, (at, at)) - 1
    return place >= 0 and spans[place][0] < at < spans[place][1]
