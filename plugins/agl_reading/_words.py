"""What a search finds: the words of a text, and those of scripts without spaces in pairs of letters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

_JOINED: Final = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e50-\u0e59"  # Thai
    "\u0e81-\u0edf"  # Lao
    "\u1000-\u1049\u1050-\u109d"  # Burmese
    "\u1780-\u17d3\u17d7\u17dc\u17dd\u17e0-\u17e9"  # Khmer
    "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb"  # Hangul
    "\u3005-\u3007\u3021-\u302f\u3031-\u3035\u3038-\u303c"  # marks of repetition, numbers
    "\u3041-\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uffdc"  # kana
    "\u3105-\u312f\u31a0-\u31bf\ua000-\ua48c"  # Bopomofo, Yi
    "\u2e80-\u2fd5\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\U00016fe0-\U00018d08\U0001aff0-\U0001b2fb\U00020000-\U000323af"
)
"""Letters and marks of scripts that put no spaces between words, or put particles on them."""
_MARKS: Final = "\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
"""Accents and vowel signs, which belong to the letter before them."""
_ASCII: Final = re.compile("[0-9a-z]+")
_RUN: Final = re.compile(f"(?:[^\\W_]|[{_MARKS}{_JOINED}])+")
_PIECE: Final = re.compile(f"([{_JOINED}]+)|(?:[^\\W_{_JOINED}]|[{_MARKS}])+")


def indexed(text: str) -> str:
    """Return what can be found in a text, in lower case and joined by spaces.

    Those are the runs of letters and digits. In scripts without spaces between words, they are each pair
    of neighbouring letters and the last letter of a run: ``价格高 GPT-4`` gives ``价格 格高 高 gpt 4``.
    """
    folded = text.casefold()
    return " ".join(_ASCII.findall(folded) if folded.isascii() else _pieces(folded))


def phrases(text: str) -> list[str]:
    """Return what a search asks for: for each of its words, pieces of an indexed text in a row.

    The last of the pieces may be the beginning of one.
    """
    found: list[str] = []
    for run in _RUN.findall(text.casefold()):
        *pieces, last = _pieces(run)
        if not pieces or not pieces[-1].endswith(last):  # else a pair of letters holds it
            pieces.append(last)
        found.append(" ".join(pieces))
    return found


def holds(text: str, asked: Sequence[str]) -> bool:
    """Return whether an indexed text holds all phrases."""
    said = f" {text}"
    return all(f" {phrase}" in said for phrase in asked)


def _pieces(folded: str) -> Iterator[str]:
    for match in _PIECE.finditer(folded):
        run = match[0]
        if match.lastindex:
            yield from map(str.__add__, run, run[1:])
            yield run[-1]
        else:
            yield run
