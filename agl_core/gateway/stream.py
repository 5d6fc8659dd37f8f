"""Server-sent events as bytes arrive: the same events however the bytes are cut."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["DONE", "ERROR_EVENT", "Event", "EventParser", "render"]

DONE: Final = b"[DONE]"
ERROR_EVENT: Final = b"error"
"""Name of an event that states why a stream ends early."""
_BOM: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event; `data` holds its lines joined by a line feed, undecoded."""

    data: bytes
    name: bytes = b""
    raw: bytes = b""
    """As it came, with the comments before it; only where the parser keeps it."""


class EventParser:
    r"""Incremental parser of ``text/event-stream`` (WHATWG HTML, section 9.2.6).

    Lines end in ``\n``, ``\r\n`` or ``\r``; comments and unknown fields are dropped. It works on
    bytes, so that a character cut in two is never decoded by halves. Unlike a browser, `finish`
    also yields a last event that no blank line ended: servers that close right after their last
    chunk mean it.
    """

    def __init__(self, *, keep_raw: bool = False) -> None:
        """Set up for one stream.

        Args:
            keep_raw: Give each event its bytes as they came.
        """
        self._keep_raw = keep_raw
        self._raw: list[bytes] = []
        self._rest = b""
        self._after_cr = False
        self._at_start = True
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Events that `chunk` completes."""
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
        """The event that the end of the stream left open, if there is one."""
        line, self._rest = self._rest, b""
        if line:
            self._line(line)
        event = self._line(b"")
        # What comes after it, such as an error of the gateway's, must not become a part of it.
        if event is not None:
            return [event._replace(raw=event.raw + b"\n\n") if self._keep_raw else event]
        if any(self._raw):
            self._raw.append(b"\n\n")
        return []

    def idle(self) -> bytes:
        """Remove and return the bytes between events, such as comments that keep a connection alive."""
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
    """One event in wire form."""
    if not name and b"\n" not in data:
        return b"data: " + data + b"\n\n"
    head = b"event: " + name + b"\n" if name else b""
    return head + b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"
