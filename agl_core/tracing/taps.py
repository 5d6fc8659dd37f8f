"""Streams of answers that tell how far they were read, and when they end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from agl_core.tracing.calls import Sent, Tried

_EVENT_END: Final = re.compile(rb"\n\r?\n")


def taps(library: Any) -> tuple[type[Any], type[Any]]:
    """The two stream types of a library, which checks for its own base classes.

    Server-sent events are handed on one at a time, however many came at once: a reader that leaves
    has then taken exactly those that it asked for.
    """
    return _tap(library), _async_tap(library)


def _tap(library: Any) -> type[Any]:
    class Tap(library.SyncByteStream):
        def __init__(self, stream: Any, sent: Sent | Tried, events: bool) -> None:
            self._stream = stream
            self._events = events
            self._reading = sent.reading()
            self._sent = sent if sent.until_read else None

        def __iter__(self) -> Any:
            reading = self._reading
            try:
                for chunk in self._stream:
                    for piece in _pieces(chunk) if self._events else (chunk,):
                        reading.taken += len(piece)
                        yield piece
                reading.ended = True
            except BaseException as error:
                if self._sent is not None:
                    self._sent.end(error)
                raise

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                if self._sent is not None:
                    self._sent.end(None)

    return Tap


def _async_tap(library: Any) -> type[Any]:
    class AsyncTap(library.AsyncByteStream):
        def __init__(self, stream: Any, sent: Sent | Tried, events: bool) -> None:
            self._stream = stream
            self._events = events
            self._reading = sent.reading()
            self._sent = sent if sent.until_read else None

        async def __aiter__(self) -> Any:
            reading = self._reading
            try:
                async for chunk in self._stream:
                    for piece in _pieces(chunk) if self._events else (chunk,):
                        reading.taken += len(piece)
                        yield piece
                reading.ended = True
            except BaseException as error:
                if self._sent is not None:
                    self._sent.end(error)
                raise

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                if self._sent is not None:
                    self._sent.end(None)

    return AsyncTap


def _pieces(chunk: bytes) -> Iterator[bytes]:
    """A chunk cut after every event that ends in it."""
    start = 0
    for end in _EVENT_END.finditer(chunk):
        yield chunk[start : end.end()]
        start = end.end()
    if start < len(chunk):
        yield chunk[start:]
