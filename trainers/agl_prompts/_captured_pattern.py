"""Finds the text that a program sends in a longer text, and reads the values of its placeholders."""

from __future__ import annotations

from typing import NamedTuple

from agl_core.types import PLACEHOLDER

__all__ = ["Found", "Pattern"]


class Found(NamedTuple):
    """Where a text was found, and its placeholders' values."""

    start: int
    end: int
    values: dict[str, str]


class Pattern:
    """A text with ``{name}`` placeholders.

    A placeholder stands for any text, also none. A placeholder at the very beginning or end stands
    for the rest of its line, and not for nothing. Equal names stand for equal values. Each value
    ends where the constant text after it first occurs, so that finding needs time proportional to
    the text's length. A name in braces that the text has itself, such as ``{item}`` in an example
    of JSON, is a placeholder whose value is ``{item}``.
    """

    def __init__(self, text: str) -> None:
        pieces = PLACEHOLDER.split(text)
        self._literals: list[str] = pieces[0::2]
        self._names: list[str] = pieces[1::2]

    def find(self, text: str) -> Found | None:
        """Return the first place at word borders; None if the text is not there."""
        own = {name: braced for name in self._names if (braced := f"{{{name}}}") in text}
        found = self._find(text, own)
        return self._find(text, {}) if found is None and own else found

    def _find(self, text: str, values: dict[str, str]) -> Found | None:
        """Find the text with the values of some placeholders."""
        first, since = self._after(-1, values)
        if first:
            start = _find(text, first, 0)
            return None if start < 0 else self._read(text, start, start + len(first), since, values)
        if not self._names:
            return None
        # It begins with a placeholder, whose value begins with a line.
        second, following = self._after(0, values)
        at = _find(text, second, 1) if second else len(text)
        while 0 <= at <= len(text):
            start = text.rfind("\n", 0, at) + 1
            if start < at:
                known = {**values, self._names[0]: text[start:at]}
                return self._read(text, start, at + len(second), following, known)
            at = _find(text, second, at + 1) if second else -1
        return None

    def _read(
        self, text: str, start: int, at: int, number: int, values: dict[str, str]
    ) -> Found | None:
        """Read the values from `at` on, where placeholder `number` begins."""
        values = dict(values)
        while number < len(self._names):
            name = self._names[number]
            if name in values:
                expected = values[name] + self._literals[number + 1]
                if not (text.startswith(expected, at) and _border(text, at + len(expected))):
                    return None
                at, number = at + len(expected), number + 1
                continue
            needed, following = self._after(number, values)
            rest_of_line = not needed and following == len(self._names)
            end = _line_end(text, at) if rest_of_line else _find(text, needed, at)
            if end < 0 or (rest_of_line and end == at):
                return None
            values[name] = text[at:end]
            at, number = end + len(needed), following
        return Found(start, at, values)

    def _after(self, number: int, values: dict[str, str]) -> tuple[str, int]:
        """Return the known text after a placeholder, and the number of the next unknown one."""
        needed, following = self._literals[number + 1], number + 1
        while following < len(self._names) and self._names[following] in values:
            needed += values[self._names[following]] + self._literals[following + 1]
            following += 1
        return needed, following


def _find(text: str, part: str, at: int) -> int:
    """Return where `part` is from `at` on, with a word border at both sides; -1 if nowhere."""
    while (at := text.find(part, at)) >= 0:
        if _border(text, at) and _border(text, at + len(part)):
            return at
        at += 1
    return -1


def _border(text: str, at: int) -> bool:
    """Return whether no word continues over a position."""
    return not (0 < at < len(text) and _of_word(text[at - 1]) and _of_word(text[at]))


def _of_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end
