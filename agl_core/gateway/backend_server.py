"""Backends of this process behind HTTP, for a gateway that is another process."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from agl_core.interfaces import Backend, Problem
from agl_core.serving import (
    COUNT_PATH,
    Answering,
    GuestServer,
    address_of,
    asgi,
    bind,
    count_prompt,
    fresh_key,
)
from agl_core.text import decoded

_CHAT: Final = "/v1/chat/completions"


class BackendServer:
    """OpenAI chat completions of any `Backend`, one base URL per policy, behind a key of its own.

    Backends belong to whoever made them: the server never closes one.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        """Set up without listening.

        Args:
            host: An address of this machine that the gateway reaches; the system chooses the port.
        """
        self.key = fresh_key()
        """Bearer token that the gateway must send."""
        self._host = host
        self._bearer = f"Bearer {self.key}".encode()
        self._backends: dict[bytes, Backend] = {}
        self._counting: dict[bytes, Backend] = {}
        self._answering = Answering("The trainer, which has the engine, is ending")
        self._server: GuestServer | None = None
        self._url = ""

    async def start(self) -> None:
        """Listen; a server that listens already goes on.

        Raises:
            ConfigError: the host is no address of this machine.
        """
        if self._server is not None:
            return
        listener = bind(self._host, 0)
        self._answering.begin()
        self._server = GuestServer(self._app)
        await self._server.start(listener)
        self._url = address_of(listener)

    async def stop(self) -> None:
        """Break off answers under way and close the socket; idempotent."""
        server, self._server = self._server, None
        self._answering.end()
        if server is not None:
            await server.stop()

    def serve(self, policy: str, backend: Backend) -> str:
        """Answer for a policy from `backend`, in place of an earlier one; returns the base URL."""
        path = f"/{quote(policy, safe='')}"
        self._backends[f"{path}{_CHAT}".encode()] = backend
        self._counting[f"{path}{COUNT_PATH}".encode()] = backend
        return f"{self._url}{path}/v1"

    async def _app(self, scope: Mapping[str, Any], receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            backend = self._find(scope)
            body = await asgi.read_body(receive)
            if scope["raw_path"] in self._counting:
                await asgi.respond(send, 200, await count_prompt(backend, body))
                return
        except asgi.ClientLeft:
            return
        except Problem as problem:
            await asgi.respond(send, problem.status, problem.body())
            return
        await self._answering.answer(backend, body, scope, receive, send)

    def _find(self, scope: Mapping[str, Any]) -> Backend:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            raise Problem(401, "invalid_api_key", "This backend answers its run's gateway only")
        path: bytes = scope["raw_path"]
        backend = self._backends.get(path) or self._counting.get(path)
        if backend is None or scope["method"] != "POST":
            shown = decoded(path)
            raise Problem(404, "not_found", f"No policy is served at {scope['method']} {shown}")
        return backend
