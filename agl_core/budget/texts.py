"""Texts of messages, and how their middle is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from agl_core.budget.history import PINNED, Message

SHORTEST: Final = 80
"""Characters below which no text is cut: the note on the cut has to fit, with a word at each end."""
_FIELDS: Final = ("content", "reasoning_content", "reasoning")


def longest(messages: Sequence[Message]) -> int:
    """Characters of the longest text that may be cut."""
    lengths: list[int] = [0]

    def look(text: str) -> str:
        lengths.append(len(text))
        return text

    for message in messages:
        _changed(message, look)
    return max(lengths)


def clipped(messages: Sequence[Message], most: int) -> list[Message]:
    """The messages with no text longer than `most` characters; those that had none are the same."""
    return [_changed(message, lambda text: clip(text, most)) for message in messages]


def clip(text: str, most: int) -> str:
    """Beginning and end of a text with a note on what is left out between them.

    Args:
        text: A text.
        most: Characters that it may have, `SHORTEST` or more.
    """
    if len(text) <= most:
        return text
    note = f"\n[... {len(text) - most} or more characters left out ...]\n"
    kept = most - len(note)
    return text[: kept - kept // 2] + note + text[len(text) - kept // 2 :]


def characters(messages: Sequence[Message]) -> int:
    """Of all texts that may be cut, together."""
    total = 0

    def look(text: str) -> str:
        nonlocal total
        total += len(text)
        return text

    for message in messages:
        _changed(message, look)
    return total


def _changed(message: Message, change: Callable[[str], str]) -> Message:
    """The message with its texts changed; itself where nothing is."""
    if message.get("role") in PINNED:
        return message
    changes = {
        name: value
        for name in _FIELDS
        if (value := _content(message.get(name), change)) is not message.get(name)
    }
    return {**message, **changes} if changes else message


def _content(content: Any, change: Callable[[str], str]) -> Any:
    if isinstance(content, str):
        return _same(content, change(content))
    if not isinstance(content, list):
        return content
    parts = cast("list[Any]", content)
    changed = [_part(part, change) for part in parts]
    return changed if any(a is not b for a, b in zip(parts, changed, strict=True)) else parts


def _part(part: Any, change: Callable[[str], str]) -> Any:
    if isinstance(part, str):
        return _same(part, change(part))
    if not isinstance(part, Mapping):
        return part
    fields = cast("Mapping[str, Any]", part)
    text = fields.get("text")
    if not isinstance(text, str):
        return fields
    changed = change(text)
    return fields if changed == text else {**fields, "text": changed}


def _same(before: str, after: str) -> str:
    return before if before == after else after
