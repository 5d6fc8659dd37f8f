"""uvicorn on a running event loop, and what a process sets up that does nothing but serve."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import socket
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, cast

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from agl_core import waits
from agl_core.clocks import steady_loop
from agl_core.errors import ConfigError
from agl_core.serving import asgi

_IDLE_S: Final = 600
"""Seconds an idle client connection is kept: agents think and run tools between calls."""
_HANDLES: Final = 64
_PROBES_S: Final = (0.0, 0.02, 0.2, 2.0)
"""When a half-closed connection is written to; clients take at least five interim answers."""
_INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_COLLECT_AFTER: Final = 50_000
_COMMENT: Final = b":\n\n"
"""In a stream of events."""

_LARGEST_JOINED: Final = 2**16
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
    """uvicorn's own, with fewer writes, and with answers for clients that closed their side.

    Fulfils `asgi.Connection`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_lost: set[Callable[[], Any]] = set()
        self._lost = False
        protocol = cast("Any", self)
        protocol.app_state = {**protocol.app_state, asgi.CONNECTION: self}

    def on_lost(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Have `call` called once when the connection is lost; returns what takes that back.

        Reading is resumed: only reading notices that a client disconnects.
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
        # uvloop's transports are none by name.
        super().connection_made(JoinedWrites(cast("asyncio.Transport", transport)))

    def eof_received(self) -> bool:
        """Keep a connection whose client has sent all that it will send, until it is answered.

        TCP does not distinguish such a client from one that has gone, until something is written to it:
        a client that has gone answers with a reset, on which the next write fails.
        """
        protocol = cast("Any", self)
        cycle = protocol.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        if cycle.scope["http_version"] == "1.0":  # has no interim answers
            return False
        for delay_s in _PROBES_S:
            protocol.loop.call_later(delay_s, _probe, protocol.transport, cycle)
        return True


def _probe(transport: asyncio.Transport, cycle: Any) -> None:
    """Write what a client skips: an interim answer, or a chunk of what fills this body."""
    if cycle.response_complete or transport.is_closing():
        return
    filler: bytes | None = cycle.scope["state"].get(asgi.FILLER)
    if not cycle.response_started:
        transport.write(_INTERIM)
    elif filler and getattr(cycle, "chunked_encoding", False):
        transport.write(b"%x\r\n%b\r\n" % (len(filler), filler))


def _marking_streams(app: asgi.App) -> asgi.App:
    """Note in a request's state that its answer is a stream of events."""

    async def marking(scope: Any, receive: asgi.Receive, send: asgi.Send) -> None:
        async def marked(message: asgi.Message) -> None:
            if message["type"] == "http.response.start":
                kind = dict(message["headers"]).get(b"content-type", b"")
                if kind.startswith(b"text/event-stream"):
                    scope["state"][asgi.FILLER] = _COMMENT
            await send(message)

        await app(scope, receive, marked)

    return marking


class GuestServer(uvicorn.Server):
    """A server on a running event loop: it handles no signals, and `start` returns once it listens."""

    def __init__(self, app: Any) -> None:
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
        """Serve in the background; returns once connections are accepted."""
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
    """How many handles of one socket listen beside it.

    asyncio takes every connection that waits, in one turn of the loop. libuv, and so uvloop, takes
    one per handle (since libuv 1.45). A turn is long where many calls are under way: with one
    handle, those who have connected already are served turn after turn while others wait.
    """
    return 0 if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop) else _HANDLES - 1


def bind(host: str, port: int) -> socket.socket:
    """A listening socket on the address; port 0 is one the system chooses.

    Raises:
        ConfigError: the address is taken or not ours.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"Host {host!r} is no address of this machine: {error}") from error
    try:
        if os.name == "posix":  # elsewhere it lets two processes listen on one port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # only then no other process can listen on it
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Cannot listen on {host}:{port}: {error}. Choose another host or port; port 0 takes a "
            f"free one"
        ) from error
    return listener


def address_of(listener: socket.socket) -> str:
    """``http://host:port`` of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def rare_collections() -> Generator[None]:
    """Look for cycles after some hundred requests instead of a few, and never in what is there now.

    Hardly anything that a request makes is part of a cycle, yet at Python's own threshold of 700
    objects the search takes a tenth of a gateway's time. For processes of our own only: a user's
    program has its own needs.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def serving_loop() -> asyncio.AbstractEventLoop:
    """For a process that does nothing but serve: of uvloop where that is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return steady_loop()
    return uvloop.new_event_loop()
