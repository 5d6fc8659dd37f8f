"""ASGI without a framework: bodies, answers, and the headers that the gateway forwards."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Final, Protocol

from agl_core import semconv
from agl_core.text import system_bytes

AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
AsgiScope = MutableMapping[str, Any]
AsgiApp = Callable[[AsgiScope, Receive, Send], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]
Translate = Callable[[bytes, Send], tuple[bytes, Send]]
"""Maps a dialect's request body and ``send`` to those of a chat completion; raises `Problem`."""

RPC_PREFIX: Final = "/agl/v1/"
"""Path prefix of remote methods."""

JSON: Final = ((b"content-type", b"application/json"),)
FILLER: Final = "filler"
"""Key in a request's state: bytes that its client ignores at any place in the answer's body."""
CONNECTION: Final = "connection"
"""Key in a request's state: the request's `Connection`."""

_KEPT_BACK: Final = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "date",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "server",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-api-key",
    }
)

_CONTROLS: Final = bytes((*range(9), *range(10, 32), 127))
_BLANKS: Final = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ClientLeft(Exception):  # noqa: N818  an event, not a failure
    """The client closed its connection before its request was complete."""


class TooLarge(Exception):  # noqa: N818  an event, not a failure
    """A request's body has more bytes than the server accepts."""


def travels(name: str) -> bool:
    """Whether the gateway forwards a header (name in lower case), in both directions.

    Headers of agl-core, hop-by-hop headers and secret ones are not forwarded.
    """
    return name not in _KEPT_BACK and not name.startswith(semconv.HEADER_PREFIX)


def passed_on(headers: RawHeaders) -> dict[str, str]:
    """Return the client's headers that are forwarded to a backend."""
    return {name: value.decode("latin-1") for raw, value in headers if (name := _travelling(raw))}


@lru_cache(maxsize=1024)
def _travelling(raw: bytes) -> str:
    """Return the name of a header that is forwarded; empty for any other."""
    name = raw.decode("latin-1")
    return name if travels(name) else ""


def answered(headers: Mapping[str, str], ours: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the backend's headers that are forwarded to a client, and `ours`.

    All names are in lower case. Headers with invalid names are left out, invalid characters in
    values are replaced by spaces.
    """
    passed = {name: value for name, value in headers.items() if _passes(name)}
    return [(_encoded(name), _encoded(value)) for name, value in (passed | dict(ours)).items()]


@lru_cache(maxsize=1024)
def _passes(name: str) -> bool:
    return travels(name) and _NAME.fullmatch(name) is not None


def _encoded(text: str) -> bytes:
    """Return the bytes of a header's text; a line break in it would begin another header."""
    return system_bytes(text).translate(_BLANKS)


async def read_body(receive: Receive, *, largest: int | None = None) -> bytes:
    """Return the whole request body, of at most `largest` bytes.

    Raises:
        ClientLeft: the client disconnected before the body was complete.
        TooLarge: the body is larger; the rest is not read.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        size += len(part)
        if largest is not None and size > largest:
            raise TooLarge
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


class Connection(Protocol):
    """The connection of a request, in the request's state under `CONNECTION`."""

    def on_lost(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Call `call` once when the connection is lost; return a function that cancels this."""
        ...


def on_client_left(scope: AsgiScope, call: Callable[[], Any]) -> Callable[[], None]:
    """Call `call` once when the client disconnects; return a function that cancels this.

    With servers that do not set `CONNECTION`, `call` is never called.
    """
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)
    return connection.on_lost(call) if connection is not None else _nothing


def _nothing() -> None:
    """Do nothing: no call was registered."""


async def start(send: Send, status: int, headers: RawHeaders) -> None:
    """Send the head of an answer."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def respond(send: Send, status: int, body: bytes, *, headers: RawHeaders = JSON) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await start(send, status, [*headers, length])
    await send({"type": "http.response.body", "body": body, "more_body": False})


class CountedSend:
    """An ASGI ``send`` that stores the status and counts the bytes of the body."""

    __slots__ = ("_send", "count", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.count = 0
        self.status = 0
        """0 until the head is sent."""

    async def __call__(self, message: AsgiMessage) -> None:
        self.status = message.get("status", self.status)
        self.count += len(message.get("body", b""))
        await self._send(message)


def error_text(payload: Any) -> str:
    """Return the message of an error body in any of the usual formats."""
    if isinstance(payload, dict):
        error: Any = payload.get("error", payload)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        if isinstance(error, dict):
            code: Any = error.get("code") or error.get("type") or ""  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            text: Any = error.get("message", error)  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            return f"{code}: {text}" if code else str(text)  # pyright: ignore[reportUnknownArgumentType]
        return str(error)  # pyright: ignore[reportUnknownArgumentType]
    return str(payload)
