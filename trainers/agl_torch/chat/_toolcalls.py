"""Incremental parsing of tool calls in generated text."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_ESCAPED = re.compile(r"\\.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the model."""

    index: int
    id: str
    name: str
    arguments: str
    """JSON object, formatted as chat templates format it."""


ParsedPart = str | ToolCall
"""A piece of text, or a complete call."""


class ToolCallParser:
    """Separates ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` from other text.

    Text that may start a marker and incomplete calls are held back, so the result does not depend
    on how the text is divided into pieces. Content between markers that is not a valid call stays
    text, unchanged. White space next to a call is dropped. A call without closing marker at the end
    of the text counts if its JSON is complete.
    """

    def __init__(self, *, response_id: str, choice: int = 0) -> None:
        self._seed = f"{response_id}/{choice}"
        self._held = ""
        self._inside = False
        self._space = ""
        self._after_call = False
        self._calls = 0

    def feed(self, text: str) -> list[ParsedPart]:
        """Return the events that `text` completes."""
        self._held += text
        events: list[ParsedPart] = []
        while self._advance(events):
            pass
        return _joined(events)

    def finish(self) -> list[ParsedPart]:
        """Return the events of the text that is still held back; call it at the end of the text."""
        events: list[ParsedPart] = []
        if self._inside:
            self._close(self._held, OPEN + self._held, events)
        else:
            self._text(self._held, events)
        self._held, self._inside = "", False
        if self._space and not self._after_call:
            events.append(self._space)
        self._space = ""
        return _joined(events)

    def _advance(self, events: list[ParsedPart]) -> bool:
        """Consume text up to the next marker; return False when more text is needed."""
        if self._inside:
            end = _closing(self._held)
            if end < 0:
                return False
            body, self._held = self._held[:end], self._held[end + len(CLOSE) :]
            self._inside = False
            self._close(body, OPEN + body + CLOSE, events)
            return True
        start = self._held.find(OPEN)
        if start >= 0:
            self._text(self._held[:start], events)
            self._held = self._held[start + len(OPEN) :]
            self._inside = True
            return True
        keep = _partial(self._held)
        self._text(self._held[: len(self._held) - keep], events)
        self._held = self._held[len(self._held) - keep :]
        return False

    def _close(self, body: str, verbatim: str, events: list[ParsedPart]) -> None:
        parsed = _parse(body)
        if parsed is None:
            self._text(verbatim, events)
            return
        name, arguments = parsed
        digest = hashlib.sha256(f"{self._seed}/{self._calls}".encode()).hexdigest()
        events.append(ToolCall(self._calls, f"call_{digest[:24]}", name, arguments))
        self._calls += 1
        self._after_call, self._space = True, ""

    def _text(self, text: str, events: list[ParsedPart]) -> None:
        text = self._space + text
        if self._after_call:
            text = text.lstrip()
        solid = text.rstrip()
        self._space = text[len(solid) :]
        if solid:
            events.append(solid)
            self._after_call = False


def _parse(body: str) -> tuple[str, str] | None:
    """Return name and arguments of a call, or None if `body` is not a call."""
    try:
        call: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return call["name"], json.dumps(arguments, ensure_ascii=False)


def _closing(text: str) -> int:
    """Return the index of the first closing marker outside a JSON string, or -1."""
    end = text.find(CLOSE)
    while end >= 0:
        if _ESCAPED.sub("", text[:end]).count('"') % 2 == 0:
            return end
        end = text.find(CLOSE, end + 1)
    return -1


def _partial(text: str) -> int:
    """Return the length of the longest suffix of `text` that may start an opening marker."""
    for length in range(min(len(text), len(OPEN) - 1), 0, -1):
        if OPEN.startswith(text[-length:]):
            return length
    return 0


def _joined(events: list[ParsedPart]) -> list[ParsedPart]:
    """Merge adjacent texts."""
    merged: list[ParsedPart] = []
    for event in events:
        if isinstance(event, str) and merged and isinstance(merged[-1], str):
            merged[-1] += event
        else:
            merged.append(event)
    return merged
