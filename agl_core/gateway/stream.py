"""Server-sent events as bytes arrive: the same events however the bytes are cut."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["DONE", "Event", "EventParser", "render"]

DONE: Final = b"[DONE]"
_BOM: Final = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One event; `data` holds its lines joined by a line feed, undecoded."""

    data: bytes
    name: bytes = b""


class EventParser:
    r"""Incremental parser of ``text/event-stream`` (WHATWG HTML, section 9.2.6).

    Lines end in ``\n``, ``\r\n`` or ``\r``; comments and unknown fields are dropped, and works on
    bytes, so that a character cut in two is never decoded by halves. Unlike a browser, `finish`
    also yields a last event that no blank line ended: servers that close right after their last
    chunk mean it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._at_start = True
        self._data: list[bytes] = []
        self._name = b""

    def feed(self, chunk: bytes) -> list[Event]:
        """Events that `chunk` completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        buffer = self._rest + chunk
        if b"\r" in buffer:
            self._after_cr = buffer.endswith(b"\r")
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = buffer.split(b"\n")
        return [event for line in lines if (event := self._line(line)) is not None]

    def finish(self) -> list[Event]:
        """The event that the end of the stream left open, if there is one."""
        line, self._rest = self._rest, b""
        if line:
            self._line(line)
        event = self._line(b"")
        return [] if event is None else [event]

    def _line(self, line: bytes) -> Event | None:
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
        return Event(b"\n".join(data), name) if data else None


def render(data: bytes, *, name: bytes = b"") -> bytes:
    """One event in wire form."""
    if not name and b"\n" not in data:
        return b"data: " + data + b"\n\n"
    head = b"event: " + name + b"\n" if name else b""
    return head + b"".join(b"data: " + line + b"\n" for line in data.split(b"\n")) + b"\n"
