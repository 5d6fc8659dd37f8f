"""Our gateway in front of a vLLM server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agl_endpoints import HttpBackend

from agl_core.types import Attempt, Limits, ModelCall, Policy
from tests.core.gateway.conftest import World
from tests.extras.vllm.vllm_server import NAME, VllmServer

TIMEOUT_S = 600.0
"""Of a call: the first one waits for kernels to be compiled."""
FIGURES: dict[str, Any] = {}
"""What the tests measured."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look it up",
            "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
        },
    }
]


class Site:
    """The gateway in front of vLLM; policy ``trained`` serves the agent ``writer``."""

    def __init__(self, world: World, server: VllmServer, backend: HttpBackend) -> None:
        self.world = world
        self.server = server
        self.backend = backend
        self.gateway = world.gateway
        self.session = world.session

    async def serve(self, version: int, *, model: str = NAME) -> None:
        """Have the gateway send new calls to this version, a model or adapter of the server."""
        policy = Policy(
            name="trained", agents=("writer",), trainable=True, model=model, version=version
        )
        await self.gateway.route(policy, self.backend)

    async def attempt(self) -> Attempt:
        return await self.world.attempt(limits=Limits(timeout_s=TIMEOUT_S))

    async def ask(self, attempt: Attempt, text: str = "", **body: Any) -> dict[str, Any]:
        if text:
            body["messages"] = [{"role": "user", "content": text}]
        return await self.world.ask(attempt, **body)

    async def calls(self, attempt: Attempt) -> list[ModelCall]:
        return await self.world.calls(attempt)

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        """Ask vLLM itself."""
        async with self.session.post(self.server.url + path, json=body) as answer:
            return answer.status, await answer.json()

    async def prompt_of(self, messages: list[dict[str, Any]], **more: Any) -> list[int]:
        status, answer = await self.post("/tokenize", model=NAME, messages=messages, **more)
        assert status == 200, answer
        return answer["tokens"]

    async def metrics(self) -> str:
        async with self.session.get(f"{self.server.url}/metrics") as answer:
            return await answer.text()

    async def until(self, condition: Callable[[str], bool]) -> str:
        """Ask for the server's metrics until they show something: it tells by no other way."""
        while not condition(metrics := await self.metrics()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return metrics
