"""Plain HTTP/1.1 to an engine, over pooled connections: the way of every model call.

It knows only what such a call needs: a general client takes as much processor time as all else that
the gateway does for a call; see ``docs/benchmarks``. Addresses with TLS are left to aiohttp.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

from agl_core.errors import EngineError

__all__ = ["Connection", "PlainHttp"]

_BUFFER_BYTES: Final = 2**20
"""Received and not yet taken; beyond it the server is made to wait."""
_FIRST_FINAL: Final = 200
"""Lower statuses announce an answer and are none."""
_ANY_DEFLATE: Final = 47
"""zlib's sign for gzip and zlib alike."""


class ConnectionLostError(OSError):
    """The connection ended, or what came over it is no HTTP, before the answer was whole."""


class Connection(asyncio.Protocol):
    """A connection, and the answer to the request that it carries: a `BackendReply`.

    Its callbacks ``on_*`` are httptools'.
    """

    def __init__(self, pool: PlainHttp) -> None:
        """Not connected yet; goes back to `pool` once its answer is whole."""
        self.status = 0
        self._fields: dict[str, str] = {}
        self.headers: Mapping[str, str] = self._fields
        """Names in lower case; repeated ones joined by a comma."""
        self.idle_since = 0.0
        """On the loop's clock."""
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._head: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        self._waiting = 0
        self._news: asyncio.Future[None] | None = None
        self._whole = False
        self._error: Exception | None = None

    @property
    def usable(self) -> bool:
        """Another request can be sent: the server keeps it, and has nothing more to say."""
        transport = self._transport
        return (
            transport is not None
            and not transport.is_closing()
            and self._parser is None
            and not self._parts
        )

    async def ask(self, request: bytes, *, ends_at: float) -> None:
        """Send a request and wait for the head of its answer.

        Args:
            request: Head and body.
            ends_at: When the last byte of the answer must be there, on the loop's clock.

        Raises:
            asyncio.TimeoutError: the head did not come in time.
            ConnectionLostError: nor will it.
        """
        if self._transport is None:
            raise ConnectionLostError("the connection was closed") from self._error
        self.status, self._whole = 0, False
        self.headers = self._fields = {}
        self._parser = httptools.HttpResponseParser(self)
        self._head = self._loop.create_future()
        self._timer = self._loop.call_at(ends_at, self._fail, asyncio.TimeoutError())
        self._transport.write(request)
        try:
            await self._head
        except BaseException:
            self.abort()
            raise

    async def body(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrives.

        Raises:
            EngineError: it broke off.
        """
        packed = self.headers.get("content-encoding", "identity") in ("gzip", "deflate")
        inflate = zlib.decompressobj(_ANY_DEFLATE).decompress if packed else None
        try:
            while (piece := await self._next()) is not None:
                yield piece if inflate is None else inflate(piece)
        except (asyncio.TimeoutError, OSError, zlib.error) as error:
            name = str(error) or type(error).__name__
            raise EngineError(f"Answer of {self._pool.base_url} broke off: {name}") from error

    async def _next(self) -> bytes | None:
        """What has come and was not taken yet; None once all was."""
        while not self._parts:
            if self._whole:
                return None
            if self._error is not None:
                raise self._error
            self._news = self._loop.create_future()
            await self._news
        piece = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        if self._waiting > _BUFFER_BYTES and self._transport is not None:
            self._transport.resume_reading()
        self._waiting = 0
        return piece

    async def close(self) -> None:
        """Leave the connection to another request, or close it if the answer was not read."""
        self._pool.release(self)

    def abort(self) -> None:
        """Close at once; idempotent."""
        self._fail(ConnectionLostError("the connection was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self._fail(ConnectionLostError("the server spoke before it was asked"))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionLostError(f"the server's answer is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if exc is None and self.status and not framed and not self._whole:
            self.on_message_complete()
        self._fail(ConnectionLostError(str(exc or "the server closed the connection")))

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape")
        known = self._fields.get(key)
        self._fields[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL:
            self._fields.clear()
            return
        self.status = status
        if self._head is not None and not self._head.done():
            self._head.set_result(None)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        before, self._waiting = self._waiting, self._waiting + len(body)
        if before <= _BUFFER_BYTES < self._waiting and self._transport is not None:
            self._transport.pause_reading()
        self._tell()

    def on_message_complete(self) -> None:
        if not self.status:
            return
        self._whole = True
        if self._timer is not None:
            self._timer.cancel()
        kept = self._parser is not None and self._parser.should_keep_alive()
        if self._transport is not None and not kept:
            self._transport.close()
        self._parser = None
        self._tell()

    def _fail(self, error: Exception) -> None:
        """End the connection; whoever waits for it gets the first error."""
        if self._timer is not None:
            self._timer.cancel()
        if self._error is None:
            self._error = error
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if self._head is not None and not self._head.done():
            self._head.set_exception(self._error)
        self._tell()

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class PlainHttp:
    """Sends requests to one server over as many connections as are needed."""

    def __init__(self, base_url: str, *, connect_s: float, idle_s: float) -> None:
        """Describe the server; connections are opened by requests.

        Args:
            base_url: Every request's URL starts with it; ``http://``, without a password.
            connect_s: Seconds that a connection may take to open.
            idle_s: Seconds that an unused one is kept.
        """
        parts = urlsplit(base_url)
        self.base_url = base_url
        self._host = parts.hostname or ""
        self._port = parts.port or 80
        self._path = parts.path
        self._netloc = parts.netloc
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._idle: deque[Connection] = deque()
        """The one that was used last on the right: it is the least likely to have been dropped."""
        self._busy: set[Connection] = set()

    async def post(
        self, path: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> Connection:
        """Send a request; the head of its answer is there. `Connection.close` ends the exchange.

        A pooled connection that ends before an answer has begun is replaced once: the server may
        have dropped it before the request came.

        Raises:
            asyncio.TimeoutError: no answer began in time.
            OSError: none will.
            ValueError: a header has a line break, or text that no header can have.
        """
        request = self._head(path, len(body), headers) + body
        ends_at = asyncio.get_running_loop().time() + timeout_s
        if (pooled := self._pooled()) is not None:
            with suppress(ConnectionLostError):
                return await self._ask(pooled, request, ends_at)
        return await self._ask(await self._connect(ends_at), request, ends_at)

    def release(self, connection: Connection) -> None:
        """Keep a connection for another request, or close it unless its answer was read."""
        if connection not in self._busy:
            return
        self._busy.remove(connection)
        if connection.usable:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        """Close every connection; idempotent."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()
        self._busy.clear()

    def _head(self, path: str, length: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"POST {self._path}{path} HTTP/1.1", f"host: {self._netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines.append(f"content-length: {length}")
        text = "\r\n".join(lines)
        if not text.count("\r") == text.count("\n") == len(lines) - 1:
            raise ValueError("a header has a line break")
        return f"{text}\r\n\r\n".encode("latin-1")

    async def _ask(self, connection: Connection, request: bytes, ends_at: float) -> Connection:
        self._busy.add(connection)
        try:
            await connection.ask(request, ends_at=ends_at)
        except BaseException:
            self._busy.discard(connection)
            raise
        return connection

    def _pooled(self) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - self._idle_s
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, ends_at: float) -> Connection:
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(lambda: Connection(self), self._host, self._port)
        left = min(self._connect_s, ends_at - loop.time())
        _, connection = await asyncio.wait_for(opening, left)
        return connection
