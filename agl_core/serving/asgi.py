"""ASGI without a framework: bodies, answers, and which headers pass the gateway."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any, Final, Protocol

from agl_core import semconv
from agl_core.text import system_bytes

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]

JSON: Final = ((b"content-type", b"application/json"),)
FILLER: Final = "filler"
"""Key in a request's state: bytes that its client skips wherever the answer's body stands."""
CONNECTION: Final = "connection"
"""Key in a request's state: the `Connection` that it came over."""

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
    }
)

_CONTROLS: Final = bytes((*range(9), *range(10, 32), 127))
_BLANKS: Final = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class ClientLeft(Exception):  # noqa: N818  an event, not a failure
    """The client closed its connection before its request was whole."""


class TooLarge(Exception):  # noqa: N818  an event, not a failure
    """A request's body has more bytes than the server accepts."""


def travels(name: str) -> bool:
    """Whether a header, named in lower case, passes the gateway in either direction.

    Ours, hop-by-hop and secret ones do not.
    """
    return name not in _KEPT_BACK and not name.startswith(semconv.HEADER_PREFIX)


def passed_on(headers: RawHeaders) -> dict[str, str]:
    """A client's headers, as a backend is sent them."""
    return {name: value.decode("latin-1") for raw, value in headers if (name := _travelling(raw))}


@lru_cache(maxsize=1024)
def _travelling(raw: bytes) -> str:
    """The name of a header that passes the gateway, empty for any other."""
    name = raw.decode("latin-1")
    return name if travels(name) else ""


def answered(headers: Mapping[str, str], ours: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """A backend's headers, as a client is sent them, and `ours`; all named in lower case.

    Names that HTTP does not allow are left out, characters that it does not allow are blanks.
    """
    passed = {name: value for name, value in headers.items() if _passes(name)}
    return [(_encoded(name), _encoded(value)) for name, value in (passed | dict(ours)).items()]


@lru_cache(maxsize=1024)
def _passes(name: str) -> bool:
    return travels(name) and _NAME.fullmatch(name) is not None


def _encoded(text: str) -> bytes:
    """The bytes that HTTP clients read the text from; a line break would begin another header."""
    return system_bytes(text).translate(_BLANKS)


async def read_body(receive: Receive, *, largest: int | None = None) -> bytes:
    """The whole request body, of at most `largest` bytes.

    Raises:
        ClientLeft: it never came.
        TooLarge: it is larger; the rest is not read.
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
    """What a server puts into a request's state under `CONNECTION`."""

    def on_lost(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Have `call` called once when the connection is lost; returns what takes that back."""
        ...


def on_client_left(scope: Scope, call: Callable[[], Any]) -> Callable[[], None]:
    """Have `call` called once when the client closes its connection; returns what takes that back.

    It costs no task, unlike `client_leaves`. Servers that do not offer it never call.
    """
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)
    return connection.on_lost(call) if connection is not None else _nothing


def _nothing() -> None:
    """Nothing is to be taken back."""


async def client_leaves(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def start(send: Send, status: int, headers: RawHeaders) -> None:
    """Send the head of an answer."""
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def respond(send: Send, status: int, body: bytes, *, headers: RawHeaders = JSON) -> None:
    """Send a whole answer."""
    length = (b"content-length", str(len(body)).encode())
    await start(send, status, [*headers, length])
    await send({"type": "http.response.body", "body": body, "more_body": False})


class CountedSend:
    """An ASGI ``send`` that keeps the status and counts the bytes of the body."""

    __slots__ = ("_send", "count", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.count = 0
        self.status = 0
        """0 until the head is sent."""

    async def __call__(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.count += len(message.get("body", b""))
        await self._send(message)
