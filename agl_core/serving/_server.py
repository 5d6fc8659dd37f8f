"""uvicorn on a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from agl_core import waits
from agl_core.clocks import wall
from agl_core.errors import ConfigError
from agl_core.serving import asgi

_IDLE_S: Final = 600
"""Seconds for which an idle client connection is kept: agents run tools between calls."""
_HANDLES: Final = 64
_PROBES_S: Final = (0.0, 0.02, 0.2, 2.0)
"""Delays of writes to a half-closed connection; clients accept at least five interim answers."""
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_COMMENT: Final = b":\n\n"
"""A comment in a stream of events."""

_LARGEST_JOINED: Final = 2**16
"""Largest number of bytes held back, which the transport's flow control does not see."""


class JoinedWrites(asyncio.Transport):
    """A transport that joins all writes of one iteration of the event loop.

    A server writes the head and the body of an answer separately. Sent separately they are two
    system calls, and the first wakes the client too early. If many answers end in one iteration,
    the client wakes only once.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        """Wrap `transport`."""
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
        if self._size > _LARGEST_JOINED:
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


class _Connection(AutoHTTPProtocol):
    """uvicorn's protocol with fewer writes, which also answers clients that half-closed.

    Implements `asgi.Connection`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_lost: set[Callable[[], Any]] = set()
        self._lost = False
        protocol = cast("Any", self)
        protocol.app_state = {**protocol.app_state, asgi.CONNECTION: self}

    def on_lost(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Call `call` once when the connection is lost; return a function that cancels this.

        Resumes reading, because a disconnection is only noticed while reading.
        """
        protocol = cast("Any", self)
        if self._lost:
            return protocol.loop.call_soon(call).cancel
        protocol.flow.resume_reading()
        self._on_lost.add(call)
        return partial(self._on_lost.discard, call)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost = True
        calls, self._on_lost = self._on_lost, set()
        for call in calls:
            call()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio.Transport.
        super().connection_made(JoinedWrites(cast("asyncio.Transport", transport)))

    def eof_received(self) -> bool:
        """Keep the connection of a client that half-closed, until its request is answered.

        TCP does not distinguish a half-closed connection from a closed one until the server writes:
        the host of a client that has closed answers with a reset, and the next write fails.
        """
        protocol = cast("Any", self)
        cycle = protocol.cycle
        tls = protocol.scheme == "https"  # it has no half-closed connections
        if tls or cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        if cycle.scope["http_version"] == "1.0":  # HTTP/1.0 has no interim answers
            return False
        for delay_s in _PROBES_S:
            protocol.loop.call_later(delay_s, _probe, protocol.transport, cycle)
        return True


def _probe(transport: asyncio.Transport, cycle: Any) -> None:
    """Write something that clients ignore: an interim answer, or a chunk of filler in the body."""
    if cycle.response_complete or transport.is_closing():
        return
    filler: bytes | None = cycle.scope["state"].get(asgi.FILLER)
    if not cycle.response_started:
        transport.write(_INTERIM)
    elif filler and getattr(cycle, "chunked_encoding", False):
        transport.write(b"%x\r\n%b\r\n" % (len(filler), filler))


def _marking_streams(app: asgi.AsgiApp) -> asgi.AsgiApp:
    """Wrap `app` to set `asgi.FILLER` in a request's state if its answer is an event stream."""

    async def marking(scope: Any, receive: asgi.Receive, send: asgi.Send) -> None:
        async def marked(message: asgi.AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                if kind.startswith(b"text/event-stream"):
                    scope["state"][asgi.FILLER] = _COMMENT
            await send(message)

        await app(scope, receive, marked)

    return marking


class GuestServer(uvicorn.Server):
    """A uvicorn server on a running event loop, without signal handlers."""

    def __init__(self, app: Any, *, tls: ssl.SSLContext | None = None) -> None:
        config = uvicorn.Config(
            _marking_streams(app),
            log_config=None,
            access_log=False,
            http=_Connection,
            interface="asgi3",
            lifespan="off",
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=waits.SERVER_S,
        )
        config.load()
        config.ssl = tls
        super().__init__(config)
        self._listening = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()

    async def start(self, listener: socket.socket) -> None:
        """Serve in the background; return as soon as connections are accepted."""
        listeners = [listener, *(listener.dup() for _ in range(_more_listeners()))]
        self._serving = asyncio.create_task(self.serve(sockets=listeners), name="agl-server")
        listening = asyncio.create_task(self._listening.wait())
        await asyncio.wait({self._serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._serving.done():
            await self._serving

    async def stop(self) -> None:
        """Close the socket and all connections."""
        self.should_exit = True
        if self._serving is not None:
            await self._serving


def _more_listeners() -> int:
    """Return how many duplicates of the listening socket to serve as well.

    asyncio accepts every waiting connection in one iteration of the loop. libuv, and so uvloop,
    accepts one per handle (since libuv 1.45). With many running calls an iteration takes long, so
    with a single handle new clients would wait many iterations while connected ones are served.
    """
    return 0 if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop) else _HANDLES - 1


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; for port 0 the operating system chooses a free port.

    Raises:
        ConfigError: the address is in use or does not belong to this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"Host {host!r} is no address of this machine: {error}") from error
    try:
        if os.name == "posix":  # on Windows it lets two processes listen on one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from now on no other process can listen on it
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {error}. Choose another host or port; port 0 takes a "
            f"free one"
        ) from error
    return listener


def address_of(listener: socket.socket, *, tls: ssl.SSLContext | None = None) -> str:
    """Return ``http://host:port`` of a bound socket, or ``https://host:port``."""
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{host}:{port}"


def tls_context(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the settings of a server that speaks TLS 1.2 or later; None without a certificate.

    Args:
        certificate: PEM file with the certificate and those that lead to the authority's.
        key: PEM file with the key, without a password; None: it is in the same file.

    Raises:
        ConfigError: a file cannot be read, the key is another certificate's, or the certificate is
            not valid now.
    """
    if not certificate and not key:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate or "", key, password="")
        found: dict[str, str] = cast("Any", ssl)._ssl._test_decode_cert(certificate)  # noqa: SLF001
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Cannot serve TLS with the certificate {certificate!r} and the key {key!r}: {error}. "
            f"Give PEM files that belong together, and a key without a password"
        ) from error
    begins, ends = found["notBefore"], found["notAfter"]
    if not ssl.cert_time_to_seconds(begins) <= wall() <= ssl.cert_time_to_seconds(ends):
        raise ConfigError(
            f"The certificate {certificate!r} is valid from {begins} to {ends}, which is not now: "
            f"renew it, or set this machine's clock"
        )
    return context
