"""A lean HTTP/1.1 client: bytes out, an answer as it arrives, over pooled connections.

Only what the gateway asks of a client. General ones take several times the processor time of the
rest of a call; see ``docs/benchmarks``.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

__all__ = ["Client", "Connection", "ConnectionLostError"]

_BUFFER_BYTES: Final = 2**20
"""Received and not yet taken; beyond it the server is made to wait."""
_FIRST_FINAL: Final = 200
"""Lower statuses announce an answer and are none."""


class ConnectionLostError(OSError):
    """The connection ended, or what came over it is no HTTP, before the answer was whole."""


class Connection(asyncio.Protocol):
    """A connection, and the answer to the request that it carries.

    Its callbacks ``on_*`` are httptools'.
    """

    def __init__(self) -> None:
        """Not connected yet."""
        self.status = 0
        self.headers: dict[str, str] = {}
        """Names in lower case; repeated ones joined by a comma."""
        self.idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._head: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parts: deque[bytes] = deque()
        self._waiting = 0
        self._news: asyncio.Future[None] | None = None
        self._whole = False
        self._error: Exception | None = None

    @property
    def open(self) -> bool:
        """Whether another request can be sent once the answer is whole."""
        return self._transport is not None and not self._transport.is_closing()

    async def send(self, request: bytes, *, timeout_s: float) -> None:
        """Send a request and wait for the head of its answer.

        Args:
            request: Head and body.
            timeout_s: Until the last byte of the answer.

        Raises:
            asyncio.TimeoutError: the head did not come in time.
            ConnectionLostError: nor will it.
        """
        if self._transport is None or self._error is not None:
            raise ConnectionLostError("the connection was closed") from self._error
        self.status, self.headers, self._whole = 0, {}, False
        self._parser = httptools.HttpResponseParser(self)
        self._head = self._loop.create_future()
        self._timer = self._loop.call_later(timeout_s, self._fail, asyncio.TimeoutError())
        self._transport.write(request)
        try:
            await self._head
        except BaseException:
            self.abort()
            raise

    async def body(self) -> AsyncIterator[bytes]:
        """The body in the pieces in which it arrives.

        Raises:
            asyncio.TimeoutError: it did not end in time.
            ConnectionLostError: it broke off.
        """
        while True:
            if self._parts:
                piece = b"".join(self._parts)
                self._parts.clear()
                if self._waiting > _BUFFER_BYTES and self.open and self._transport is not None:
                    self._transport.resume_reading()
                self._waiting = 0
                yield piece
            elif self._whole:
                return
            elif self._error is not None:
                raise self._error
            else:
                self._news = self._loop.create_future()
                await self._news

    @property
    def reusable(self) -> bool:
        """The answer was received to its end and the server keeps the connection."""
        return self._whole and self.open and not self._parts

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
        framed = {"content-length", "transfer-encoding"} & self.headers.keys()
        if exc is None and self.status and not framed and not self._whole:
            self.on_message_complete()
        self._fail(ConnectionLostError(str(exc or "the server closed the connection")))

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL:
            self.headers.clear()
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
        if self._transport is not None and not (
            self._parser is not None and self._parser.should_keep_alive()
        ):
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


class Client:
    """Sends requests to one server over as many connections as are needed."""

    def __init__(self, base_url: str, *, connect_s: float, idle_s: float) -> None:
        """Describe the server; connections are opened by requests.

        Args:
            base_url: Every request's URL starts with it.
            connect_s: How long a connection may take to open.
            idle_s: How long an unused one is kept.

        Raises:
            ValueError: the URL is none of HTTP.
        """
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no http:// or https:// address")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = parts.scheme == "https"
        self._path = parts.path
        self._netloc = parts.netloc.rpartition("@")[2]
        self._connect_s = connect_s
        self._idle_s = idle_s
        self._idle: deque[Connection] = deque()
        """The one that was used last on the right: it is the least likely to have been dropped."""
        self._busy: set[Connection] = set()
        self._ssl: ssl.SSLContext | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float,
    ) -> Connection:
        """Send a request; the head of the answer is there. `release` the connection afterwards.

        A pooled connection that ends before an answer has begun is replaced once: the server may
        have dropped it before the request came.

        Raises:
            asyncio.TimeoutError: no answer began in time.
            OSError: none will.
        """
        lines = [f"{method} {self._path}{path} HTTP/1.1", f"host: {self._netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"content-length: {len(body)}\r\n\r\n"]
        request = "\r\n".join(lines).encode("latin-1") + body
        ends = time.monotonic() + timeout_s
        pooled = self._pooled()
        if pooled is not None:
            try:
                return await self._send(pooled, request, timeout_s)
            except ConnectionLostError:
                pass
        fresh = await self._connect(timeout_s=ends - time.monotonic())
        return await self._send(fresh, request, ends - time.monotonic())

    def release(self, connection: Connection) -> None:
        """Keep a connection for another request, or close it unless its answer was whole."""
        if connection not in self._busy:
            return
        self._busy.remove(connection)
        if connection.reusable:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()

    def close(self) -> None:
        """Close every connection; idempotent."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()
        self._busy.clear()

    async def _send(self, connection: Connection, request: bytes, timeout_s: float) -> Connection:
        self._busy.add(connection)
        try:
            await connection.send(request, timeout_s=timeout_s)
        except BaseException:
            self._busy.discard(connection)
            raise
        return connection

    def _pooled(self) -> Connection | None:
        oldest = time.monotonic() - self._idle_s
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    async def _connect(self, *, timeout_s: float) -> Connection:
        if self._tls and self._ssl is None:
            self._ssl = ssl.create_default_context()
        opening = asyncio.get_running_loop().create_connection(
            Connection, self._host, self._port, ssl=self._ssl
        )
        _, connection = await asyncio.wait_for(opening, min(self._connect_s, timeout_s))
        return connection
