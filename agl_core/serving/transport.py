"""Few large writes to a socket in place of many small ones."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_LARGEST: Final = 2**16
"""Bytes that are held back at most, and so escape the flow control of the transport below."""


class JoinedWrites(asyncio.Transport):
    """A transport that sends in one piece what is written in one turn of the event loop.

    A server writes the head of an answer and its body one after the other. Sent apart they are two
    system calls, each of which wakes the client, the first one for nothing. And where many answers
    end in one turn, the client wakes once for all.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        """Write to `transport`."""
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size > _LARGEST:
            self._flush()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._parts.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
