"""Backends of this process behind HTTP, for a gateway that is another process."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from agl_core.budget.gateway import PATH
from agl_core.errors import EngineError
from agl_core.gateway.counting import answer_of
from agl_core.gateway.headers import answered, passed_on
from agl_core.gateway.problems import Problem
from agl_core.interfaces import Backend
from agl_core.serving import asgi
from agl_core.serving.keys import fresh_key
from agl_core.serving.server import GuestServer, address_of, bind

_CHAT: Final = "/v1/chat/completions"
_NO_LIMIT_S: Final = 86_400.0
"""The gateway keeps the deadline of a call: it leaves, and the answer is closed."""


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
        self._ending = asyncio.Event()
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
        self._ending.clear()
        self._server = GuestServer(self._app)
        await self._server.start(listener)
        self._url = address_of(listener)

    async def stop(self) -> None:
        """Break off answers under way and close the socket; idempotent."""
        server, self._server = self._server, None
        self._ending.set()
        if server is not None:
            await server.stop()

    def serve(self, policy: str, backend: Backend) -> str:
        """Answer for a policy from `backend`, in place of an earlier one; returns the base URL."""
        path = f"/{quote(policy, safe='')}"
        self._backends[f"{path}{_CHAT}".encode()] = backend
        self._counting[f"{path}{PATH}".encode()] = backend
        return f"{self._url}{path}/v1"

    async def _app(self, scope: Mapping[str, Any], receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            backend = self._find(scope)
            body = await asgi.read_body(receive)
            if scope["raw_path"] in self._counting:
                await asgi.respond(send, 200, await answer_of(backend, body))
                return
        except asgi.ClientLeft:
            return
        except Problem as problem:
            await asgi.respond(send, problem.status, problem.body())
            return
        answer = _Answer(send)
        forwarding = answer.forward(backend, body, passed_on(scope["headers"]))
        answering = asyncio.create_task(forwarding)
        leaving = asyncio.create_task(asgi.client_leaves(receive))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({answering, leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (leaving, ending, answering):
                task.cancel()
            await asyncio.wait({answering})
        if not answering.cancelled():
            answering.result()
        elif self._ending.is_set():
            await answer.refuse("The trainer, which has the engine, is ending")

    def _find(self, scope: Mapping[str, Any]) -> Backend:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            raise Problem(401, "invalid_api_key", "This backend answers its run's gateway only")
        path: bytes = scope["raw_path"]
        backend = self._backends.get(path) or self._counting.get(path)
        if backend is None or scope["method"] != "POST":
            shown = path.decode("ascii", "replace")
            raise Problem(404, "not_found", f"No policy is served at {scope['method']} {shown}")
        return backend


class _Answer:
    """One answer on its way; when it breaks off, so does the connection, and the gateway hears of it."""

    def __init__(self, send: asgi.Send) -> None:
        self._send = send
        self._started = False

    async def forward(self, backend: Backend, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            reply = await backend.chat(body, headers=headers, timeout_s=_NO_LIMIT_S)
        except EngineError as error:
            await self.refuse(str(error))
            return
        try:
            given = {name.lower(): value for name, value in reply.headers.items()}
            kind = given.get("content-type", "application/json")
            head = answered(given, {"content-type": kind})
            self._started = True
            await asgi.start(self._send, reply.status, head)
            async for chunk in reply.body():
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except EngineError:
            return
        finally:
            await reply.close()

    async def refuse(self, why: str) -> None:
        """Say that there will be no answer, unless one has begun."""
        if self._started:
            return
        self._started = True
        problem = Problem(503, "engine_error", why, retry=True)
        await asgi.respond(self._send, problem.status, problem.body())
