"""Incremental parser for server-sent events; the result is the same however the bytes are split."""

from __future__ import annotations

import json
from collections.abc import Iterator, MutableMapping
from typing import Any, Final, NamedTuple, cast

from agl_core.text import cut_half, has_lone_surrogate, joined_halves, replaced_json

__all__ = ["DONE", "ERROR_EVENT", "Event", "EventParser", "Halves", "render"]

DONE: Final = b"[DONE]"
ERROR_EVENT: Final = b"error"
"""Name of the event with the reason why a stream ends early."""
_BOM: Final = b"\xef\xbb\xbf"
_TEXTS: Final = ("content", "reasoning_content", "reasoning", "refusal")


class Event(NamedTuple):
    """One event; `data` is its undecoded data lines, joined by line feeds."""

    data: bytes
    name: bytes = b""
    raw: bytes = b""
    """The received bytes, with comments before the event; empty unless the parser keeps them."""


class EventParser:
    r"""Incremental parser of ``text/event-stream`` (WHATWG HTML, section 9.2.6).

    Lines end in ``\n``, ``\r\n`` or ``\r``; comments and unknown fields are dropped. It works on
    bytes, so that a character that is split between two chunks is never decoded in parts. Unlike a
    browser, `finish` also returns a last event without a blank line after it: some servers close
    the connection right after their last chunk.
    """

    def __init__(self, *, keep_raw: bool = False) -> None:
        """Create a parser for one stream.

        Args:
            keep_raw: Fill `Event.raw`.
        """
        self._keep_raw = keep_raw
        self._raw: list[bytes] = []
        self._rest = b""
        self._after_cr = False
        self._at_start = True
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes."""
        if self._after_cr and chunk:
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
                self._raw += [b"\n"] if self._keep_raw else []
            self._after_cr = False
        buffer = self._rest + chunk
        self._after_cr = self._after_cr or buffer.endswith(b"\r")
        lines = buffer.splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith((b"\n", b"\r")) else b""
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[Event]:
        """Return the last event if the stream ended without a blank line after it."""
        line, self._rest = self._rest, b""
        if line:
            self._line(line)
        event = self._line(b"")
        # A following event, such as the gateway's error event, must not become a part of this one.
        if event is not None:
            return [event._replace(raw=event.raw + b"\n\n") if self._keep_raw else event]
        if any(self._raw):
            self._raw.append(b"\n\n")
        return []

    def idle(self) -> bytes:
        """Remove and return the bytes between events, such as keep-alive comments."""
        if self._data or self._name:
            return b""
        raw, self._raw = b"".join(self._raw), []
        return raw

    def _line(self, line: bytes) -> Event | None:
        if self._keep_raw:
            self._raw.append(line)
        line = line.rstrip(b"\r\n")
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value
        return None

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._name = [], b""
        if not data:
            return None
        raw, self._raw = b"".join(self._raw), []
        return Event(b"\n".join(data), name, raw)


def render(data: bytes, *, name: bytes = b"") -> bytes:
    """Return one event in wire format."""
    if not name and b"\n" not in data:
        return b"data: " + data + b"\n\n"
    head = b"event: " + name + b"\n" if name else b""
    return head + b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"


class Halves:
    """Joins surrogate pairs that are split between two deltas of a stream.

    A high surrogate at the end of a delta is held back for the next delta of the same text. A
    surrogate without its other half becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], str] = {}
        """Choice and field to the high surrogate at the end of the last delta."""

    def join(self, data: bytes) -> bytes:
        """Return the chunk with joined pairs; the same object if no pair is split."""
        if not self._held and b"\\u" not in data:
            return data
        try:
            chunk: Any = json.loads(data)
            alone = has_lone_surrogate(json.dumps(chunk, ensure_ascii=False))
        except (ValueError, RecursionError):
            return data
        if not isinstance(chunk, dict) or not (self._held or alone):
            return data
        fields = cast("dict[str, Any]", chunk)
        for row in _objects(fields.get("choices")):
            self._join_row(row)
        return replaced_json(json.dumps(fields).encode())

    def _join_row(self, row: dict[str, Any]) -> None:
        delta: Any = row.get("delta")
        choice = str(row.get("index") or 0)
        if isinstance(delta, dict):
            for where, owner, name in _texts(cast("dict[str, Any]", delta)):
                self._join_text((choice, *where), owner, name)
        if row.get("finish_reason") is not None:
            held = [key for key in self._held if key[0] == choice]
            for key in held:
                del self._held[key]
                if len(key) == 2:  # noqa: PLR2004 (choice and field)
                    _append(row, key[1], "\ufffd")

    def _join_text(self, key: tuple[Any, ...], owner: MutableMapping[str, Any], name: str) -> None:
        text: str = self._held.pop(key, "") + owner[name]
        text, half = cut_half(text)
        if half:
            self._held[key] = half
        owner[name] = joined_halves(text)


def _append(row: dict[str, Any], name: str, text: str) -> None:
    """Append to a text of the row's delta; leave a field of another type unchanged."""
    delta: Any = row.get("delta")
    if delta is None:
        delta = row["delta"] = {}
    if isinstance(delta, dict):
        fields = cast("dict[str, Any]", delta)
        before: Any = fields.get(name) or ""
        if isinstance(before, str):
            fields[name] = before + text


def _texts(delta: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any], str]]:
    """Yield the non-empty texts of a delta: an identifier, the object with the text, its key."""
    for name in _TEXTS:
        if isinstance(delta.get(name), str) and delta[name]:
            yield (name,), delta, name
    calls = [
        (str(call.get("index", at)), call)
        for at, call in enumerate(_objects(delta.get("tool_calls")))
    ]
    functions = [(index, call.get("function")) for index, call in calls]
    for index, function in [*functions, ("", delta.get("function_call"))]:
        if isinstance(function, dict):
            fields = cast("dict[str, Any]", function)
            if isinstance(fields.get("arguments"), str) and fields["arguments"]:
                yield ("arguments", index), fields, "arguments"


def _objects(value: Any) -> list[dict[str, Any]]:
    rows = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]
