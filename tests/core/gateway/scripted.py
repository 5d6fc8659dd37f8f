"""A gateway without sockets in front of a backend that answers whatever bytes a test gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agl_responses._request import read

from agl_core.clocks import new_id
from agl_core.gateway import GatewayServer
from agl_core.gateway._stream import EventParser
from agl_core.interfaces import Backend
from agl_core.store._memory import MemoryStore
from agl_core.types import Attempt, Limits, ModelCall, Policy, Rollout, Task

PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
PATIENCE_S = 60.0
"""Far more than anything here takes: whoever waits so long hangs."""


@dataclass
class Script(Backend):
    """A `Backend` and its reply."""

    pieces: Iterable[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = "weights-1"
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def chat(self, body: bytes, *, headers: Any, timeout_s: float) -> Script:
        self.asked.append(json.loads(body))
        return self

    async def body(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def close(self) -> None: ...


@dataclass
class Got:
    """What a client was sent."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    """The answer has its last byte; the server cuts the connection otherwise."""

    @property
    def events(self) -> list[bytes]:
        """Data of the events of a stream."""
        parser = EventParser()
        return [event.data for event in (*parser.feed(self.body), *parser.finish())]


class Desk:
    """The gateway and its clients."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.script = Script()
        self.gateway = GatewayServer(self.store, dialects={"POST /responses": read})

    async def attempt(self) -> Attempt:
        limits = Limits(timeout_s=600.0, lease_s=600.0)
        row = Rollout(id=new_id("ro"), task=Task(id="t"), run_id="run", limits=limits, seed=7)
        await self.store.enqueue([row])
        (claim,) = await self.store.claim("w", limit=1, timeout_s=100)
        await self.gateway.open(claim.rollout, claim.attempt)
        return claim.attempt

    def headers(self, attempt: Attempt, agent: str = "writer") -> dict[str, str]:
        named = {"rollout": attempt.rollout_id, "attempt": attempt.id, "agent": agent}
        key = self.gateway.attempt_key(attempt.rollout_id, attempt.id)
        headers = {f"x-agl-{name}": value for name, value in named.items()}
        return {**headers, "Authorization": f"Bearer {key}"}

    async def ask(
        self, attempt: Attempt, dialect: str = "chat", *, agent: str = "writer", **body: Any
    ) -> Got:
        asks = {"input": "hi"} if dialect == "responses" else {"messages": [USER]}
        content = json.dumps({"model": "gpt-x", **asks, **body}).encode()
        given = self.headers(attempt, agent)
        headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        scope = {
            "type": "http",
            "method": "POST",
            "raw_path": PATHS[dialect].encode(),
            "headers": headers,
        }
        got, asked = Got(), [{"type": "http.request", "body": content}]

        async def receive() -> Any:
            return asked.pop() if asked else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                got.status, got.headers = message["status"], dict(message["headers"])
                return
            got.body += message.get("body", b"")
            got.ended = not message.get("more_body", False)

        await asyncio.wait_for(self.gateway._endpoints(scope, receive, send), PATIENCE_S)
        return got

    async def answer(self, *pieces: bytes, kind: str = "", status: int = 200) -> None:
        self.script.pieces, self.script.status = pieces, status
        self.script.headers = {"Content-Type": kind} if kind else {}

    async def calls(self, attempt: Attempt) -> list[ModelCall]:
        """Seal the attempt; its records, in order."""
        await asyncio.wait_for(self.gateway.seal(attempt.id), PATIENCE_S)
        spans = await self.store.spans([attempt.rollout_id])
        return [span.call for span in spans if span.call is not None]


USER = {"role": "user", "content": "hi"}


@asynccontextmanager
async def desk(*, model: str = "weights-1") -> AsyncIterator[Desk]:
    """Trained agents are ``writer``, all others are frozen."""
    made = Desk()
    made.script.model = model
    await made.store.open()
    trained = Policy(name="trained", agents=("writer",), trainable=True)
    await made.gateway.route(trained, made.script)
    await made.gateway.route(Policy(name="frozen", agents=("*",), trainable=False), made.script)
    try:
        yield made
    finally:
        await made.store.close()


def plain(message: dict[str, Any], **more: Any) -> bytes:
    """A whole chat completion of one choice, as ASCII."""
    row = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    document = {"id": "c-1", "object": "chat.completion", "model": "m", "choices": [row | more]}
    return json.dumps(document).encode()


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """An event with a chunk of one choice, as ASCII."""
    row = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    document = {"id": "c-1", "object": "chat.completion.chunk", "model": "m", "choices": [row]}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STREAM = "text/event-stream"
