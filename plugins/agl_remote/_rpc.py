"""Remote methods with one bearer key: ``POST /agl/v1/<method>``, with JSON bodies.

An answer is ``{"ok": value}`` or ``{"error": {"type", "message", ...}}``. While the method runs,
the server sends spaces before the answer, so that the client detects a dead server within seconds.
No answer, or status 503, means that the server is stopping: the client has to repeat the call.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from agl_core.clocks import wall
from agl_core.errors import AglError
from agl_core.serving import asgi
from agl_core.text import decoded, escaped

_log = logging.getLogger(__name__)

PROTOCOL: Final = 2
"""Increased whenever the meaning or format of a method changes."""
HEADER_PROTOCOL: Final = "x-agl-protocol"
HEADER_INSTANCE: Final = "x-agl-instance"
HEADER_TIME: Final = "x-agl-time"
"""Unix seconds when the server began to answer."""
HEADER_RETRY: Final = "x-agl-retry"
HEADER_WAITED: Final = "x-agl-waited"

PULSE_S: Final = 5.0
"""Interval between the spaces that are sent while a method runs."""

_HEALTH: Final = b"/health"
_SPACE: Final = b" "


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """One call of a method."""

    body: bytes
    retry: int
    """How often the same call was sent before and got no answer."""
    waited_s: float = 0.0
    """Seconds since the call was first sent, which count towards its timeout."""


RpcMethod = Callable[[RpcRequest], Awaitable[Any]]
"""A method: its result is encoded as JSON; the client raises its `AglError` again."""


class Refusal(msgspec.Struct):
    """An error in an answer."""

    type: str
    message: str
    fields: dict[str, Any] = {}
    """The error's other attributes: texts, numbers and None."""


class RpcApp:
    """An ASGI application that serves methods."""

    def __init__(self, methods: Mapping[str, RpcMethod], *, key: str, instance: str) -> None:
        """Create the application.

        Args:
            methods: The methods by name.
            key: Bearer token that clients must send.
            instance: Identifies the server process; a restarted one has another.
        """
        self._methods = {
            f"{asgi.RPC_PREFIX}{name}".encode(): method for name, method in methods.items()
        }
        self._bearer = f"Bearer {key}".encode()
        self._headers = [*asgi.JSON, (HEADER_INSTANCE.encode(), instance.encode())]
        self._works: set[asyncio.Task[bytes]] = set()
        self._closed = False

    def close(self) -> None:
        """Cancel all calls and accept no more; clients repeat them until a server answers."""
        self._closed = True
        for work in self._works:
            work.cancel()

    async def __call__(
        self, scope: Mapping[str, Any], receive: asgi.Receive, send: asgi.Send
    ) -> None:
        path: bytes = scope["raw_path"]
        if path == _HEALTH:
            await asgi.respond(send, 200, b'{"status":"ok"}')
            return
        # The filler is written before the answer to detect that the client has disconnected.
        scope["state"][asgi.FILLER] = _SPACE
        headers: dict[bytes, bytes] = dict(scope["headers"])
        refused = self._refused(path, headers)
        if refused is not None:
            status, why = refused
            await asgi.respond(send, status, _failed("ConfigError", why), headers=self._head())
            return
        try:
            body = await asgi.read_body(receive)
        except asgi.ClientLeft:
            return
        if self._closed:
            await self._send_away(send, started=False)
            return
        request = RpcRequest(
            body,
            retry=int(_number(headers, HEADER_RETRY)),
            waited_s=_number(headers, HEADER_WAITED),
        )
        await self._answer(self._methods[path], request, receive, send)

    def _head(self) -> list[tuple[bytes, bytes]]:
        return [*self._headers, (HEADER_TIME.encode(), repr(wall()).encode())]

    def _refused(self, path: bytes, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        """Return status and message if the call is refused, else None."""
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            return 401, "wrong key: give every process of the run the same AGL_API_KEY"
        spoken = decoded(headers.get(HEADER_PROTOCOL.encode(), b""))
        if spoken != str(PROTOCOL):
            return 426, (
                f"the caller speaks protocol {spoken or 'unknown'}, this server {PROTOCOL}: install "
                f"the same version of agl-core on both sides"
            )
        if path not in self._methods:
            return 404, f"there is no method {decoded(path)}"
        return None

    async def _answer(
        self, method: RpcMethod, request: RpcRequest, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        work = asyncio.create_task(_outcome(method, request))
        self._works.add(work)
        left = asyncio.create_task(_client_leaves(receive))
        started = False
        try:
            while not work.done():
                await asyncio.wait(
                    {work, left}, timeout=PULSE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if left.done() and not work.done():
                    return
                if not work.done():
                    started = await self._pulse(send, started=started)
            if work.cancelled():
                await self._send_away(send, started=started)
            elif started:
                message = {"type": "http.response.body", "body": work.result(), "more_body": False}
                await send(message)
            else:
                await asgi.respond(send, 200, work.result(), headers=self._head())
        finally:
            self._works.discard(work)
            for task in (work, left):
                task.cancel()
            with suppress(asyncio.CancelledError):
                await work

    async def _pulse(self, send: asgi.Send, *, started: bool) -> bool:
        if not started:
            await asgi.start(send, 200, self._head())
        await send({"type": "http.response.body", "body": _SPACE, "more_body": True})
        return True

    async def _send_away(self, send: asgi.Send, *, started: bool) -> None:
        if started:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await asgi.respond(send, 503, b"", headers=self._head())


async def _outcome(method: RpcMethod, request: RpcRequest) -> bytes:
    try:
        value = await method(request)
        return b'{"ok":' + msgspec.json.encode(value) + b"}"
    except AglError as error:
        return _failed(type(error).__name__, str(error), vars(error))
    except msgspec.MsgspecError as error:
        return _failed("ConfigError", f"the request or its answer is malformed: {error}")
    except Exception as error:  # noqa: BLE001 - the client gets the error, other calls continue
        _log.exception("A call failed inside the server")
        return _failed("", f"{type(error).__name__} inside the server; its log has the traceback")


async def _client_leaves(receive: asgi.Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _failed(kind: str, message: str, fields: Mapping[str, Any] | None = None) -> bytes:
    plain = {
        name: escaped(value) if isinstance(value, str) else value
        for name, value in (fields or {}).items()
        if value is None or isinstance(value, str | int | float)
    }
    refusal = Refusal(type=kind, message=escaped(message), fields=plain)
    return msgspec.json.encode({"error": refusal})


def _number(headers: Mapping[bytes, bytes], name: str) -> float:
    try:
        return max(0.0, float(headers.get(name.encode(), b"0")))
    except ValueError:
        return 0.0
