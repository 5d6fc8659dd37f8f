"""The few pieces of ASGI that the proxy path needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from agl_core import semconv

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
RawHeaders = Iterable[tuple[bytes, bytes]]

JSON: Final = ((b"content-type", b"application/json"),)

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


class ClientLeft(Exception):  # noqa: N818  an event, not a failure
    """The client closed its connection before its request was whole."""


def travels(name: str) -> bool:
    """Whether a header, named in lower case, passes the gateway in either direction.

    Ours, hop-by-hop and secret ones do not.
    """
    return name not in _KEPT_BACK and not name.startswith(semconv.HEADER_PREFIX)


async def read_body(receive: Receive) -> bytes:
    """The whole request body.

    Raises:
        ClientLeft: it never came.
    """
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


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
