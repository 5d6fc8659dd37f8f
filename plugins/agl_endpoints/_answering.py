"""Forward the answers of a backend of this process over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Problem
from agl_core.serving import asgi

_NO_LIMIT_S: Final = 86_400.0
"""Effectively no time limit: the client enforces its deadline by disconnecting."""


class Answering:
    """Forwards answers to clients until `end` is called."""

    def __init__(self, ending: str) -> None:
        """Create it; calls are accepted from the start.

        Args:
            ending: Error message for clients whose answer has not begun when `end` is called.
        """
        self._message = ending
        self._ended = False
        self._answers: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Accept calls, also after an `end`."""
        self._ended = False

    def end(self) -> None:
        """Cancel running answers and refuse further calls."""
        self._ended = True
        for answer in self._answers:
            answer.cancel()

    async def answer(
        self, backend: Backend, body: bytes, scope: asgi.AsgiScope, send: asgi.Send
    ) -> None:
        """Send the backend's answer to `body`; cancel it if the client disconnects."""
        reply = _Answer(send)
        if self._ended:
            await reply.refuse(self._message)
            return
        forwarding = reply.forward(backend, body, asgi.passed_on(scope["headers"]))
        answer = asyncio.create_task(forwarding)
        self._answers.add(answer)
        forget = asgi.on_client_left(scope, answer.cancel)
        try:
            await asyncio.wait({answer})
        finally:
            forget()
            self._answers.discard(answer)
            answer.cancel()
            await asyncio.wait({answer})
        if not answer.cancelled():
            answer.result()
        elif self._ended:
            await reply.refuse(self._message)


class _Answer:
    """One answer; if it ends early, the connection is closed so that the client notices it."""

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
            head = asgi.answered(given, {"content-type": kind})
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
        """Send an error instead of the answer, unless the answer has begun."""
        if self._started:
            return
        self._started = True
        problem = Problem(503, "engine_error", why, retry=True)
        await asgi.respond(self._send, problem.status, problem.body())
