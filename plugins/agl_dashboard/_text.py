"""Texts of any origin for display: visible control characters, limits, addresses of whole texts."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from agl_core.text import replaced

SHOWN: Final = 10_000
"""Characters of a text that a page shows; the whole text has an address of its own."""
_MOST_PRETTY: Final = 100_000
_PICTURES: Final = 0x2400
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_DELETE: Final = 0x7F
_FIRST_C1: Final = 0x80


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text as it is shown, and how long it is."""

    text: str
    length: int

    @property
    def whole(self) -> bool:
        return self.length <= SHOWN


def visible(text: str) -> str:
    """Show control characters as symbols, also those that change the direction of text."""
    return _CONTROLS.sub(_symbol, replaced(text).replace("\r\n", "\n"))


def _symbol(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < _DELETE:
        return chr(_PICTURES + code)
    if code == _DELETE:
        return "\u2421"
    return f"[U+{code:04X}]"


def cut(text: str) -> ShownText:
    """Return what a page shows of a text."""
    return ShownText(visible(text[:SHOWN]), len(text))


def excerpt(text: str, most: int = 120) -> str:
    """Return a text as one short line."""
    flat = " ".join(visible(text[: most * 4]).split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def pretty(value: Any) -> str:
    """Return JSON with line breaks; a text that is not JSON stays as it is."""
    if isinstance(value, str):
        if len(value) > _MOST_PRETTY or not value.lstrip().startswith(("{", "[")):
            return value
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return value
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):  # keys that are no text, or a circle
        return repr(value)


def at_path(tree: Any, path: str) -> str | None:
    """Return the text at a path such as ``messages.3.content``; None if there is none."""
    for part in path.split("."):
        if isinstance(tree, dict):
            tree = tree.get(part)
        elif isinstance(tree, list) and part.isdigit() and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            return None
    return tree if isinstance(tree, str) else None
