"""Streams of answers that record how far they were read, and when they end."""

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

    class Tap(_Tap, library.SyncByteStream):
        def __iter__(self) -> Any:
            try:
                for chunk in self._stream:
                    yield from self._taken(chunk)
                self._reading.ended = True
            except BaseException as error:
                self._end(error)
                raise

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._end(None)

    class AsyncTap(_Tap, library.AsyncByteStream):
        async def __aiter__(self) -> Any:
            try:
                async for chunk in self._stream:
                    for piece in self._taken(chunk):
                        yield piece
                self._reading.ended = True
            except BaseException as error:
                self._end(error)
                raise

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._end(None)

    return Tap, AsyncTap


class _Tap:
    """What both have in common."""

    def __init__(self, stream: Any, sent: Sent | Tried, events: bool) -> None:
        self._stream = stream
        self._events = events
        self._reading = sent.reading()
        self._sent = sent if sent.until_read else None

    def _taken(self, chunk: bytes) -> Iterator[bytes]:
        """The pieces in which a chunk is read, each counted when it is."""
        for piece in _pieces(chunk) if self._events else (chunk,):
            self._reading.taken += len(piece)
            yield piece

    def _end(self, error: BaseException | None) -> None:
        if self._sent is not None:
            self._sent.end(error)


def _pieces(chunk: bytes) -> Iterator[bytes]:
    """A chunk cut after every event that ends in it."""
    start = 0
    for end in _EVENT_END.finditer(chunk):
        yield chunk[start : end.end()]
        start = end.end()
    if start < len(chunk):
        yield chunk[start:]
