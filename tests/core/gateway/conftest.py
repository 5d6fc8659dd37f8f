"""A gateway between real clients and the fake backend, over a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from agl_counting._count import TokenCounting
from agl_endpoints import HttpBackend
from agl_otlp._ingest import TraceIngest
from agl_prometheus._route import PrometheusRoute
from agl_responses._request import read
from agl_rewards._ingest import RewardIngest
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

from agl_core.clocks import new_id
from agl_core.gateway import GatewayOptions, GatewayServer, RecordingOptions
from agl_core.store._memory import MemoryStore
from agl_core.types import Attempt, Claim, Limits, ModelCall, Policy, Rollout, Task

ASK = {"model": "gpt-x", "messages": [{"role": "user", "content": "héllo 你好 👋"}]}

QUICK = RecordingOptions(interval_s=0.01, settle_s=0.0)
OPTIONS = GatewayOptions(recording=QUICK, operator_key="operators")
ROUTES = {
    "GET /metrics": PrometheusRoute,
    "POST /rewards": RewardIngest,
    "POST /tokenize": TokenCounting,
    "POST /traces": TraceIngest,
}
DIALECTS = {"POST /responses": read}
OPERATOR = {"Authorization": "Bearer operators"}


class World:
    """Everything a test talks to."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.store = MemoryStore()
        self.claims: dict[str, Claim] = {}

    async def start(self, options: FakeOptions | None, gateway: GatewayOptions | None) -> None:
        enter = self.stack.enter_async_context
        await self.store.open()
        self.stack.push_async_callback(self.store.close)
        self.server = await enter(FakeOpenAI(options=options))
        self.session = await enter(aiohttp.ClientSession())
        self.backend = HttpBackend(self.server.base_url, model="weights-1")
        self.stack.push_async_callback(self.backend.close)
        self.gateway = GatewayServer(
            self.store, gateway or OPTIONS, routes=ROUTES, dialects=DIALECTS
        )
        await self.route("trained", ("writer", "planner", "@*"), trainable=True)
        await self.route("frozen", ("*",), trainable=False)
        await self.gateway.start()
        self.stack.push_async_callback(self.gateway.stop)

    async def route(
        self, name: str, agents: tuple[str, ...], *, trainable: bool, **more: Any
    ) -> None:
        policy = Policy(name=name, agents=agents, trainable=trainable, **more)
        await self.gateway.route(policy, self.backend)

    async def attempt(self, **rollout: Any) -> Attempt:
        row = Rollout(
            id=new_id("ro"),
            task=Task(id="t"),
            run_id="run",
            **{"limits": Limits(timeout_s=600.0, lease_s=600.0), "seed": 7, **rollout},
        )
        await self.store.enqueue([row])
        (claim,) = await self.store.claim("w", limit=1, timeout_s=100)
        assert claim.rollout.id == row.id
        await self.gateway.open(claim.rollout, claim.attempt)
        return claim.attempt

    def headers(self, attempt: Attempt, agent: str = "writer", **more: str) -> dict[str, str]:
        named = {"rollout": attempt.rollout_id, "attempt": attempt.id, "agent": agent, **more}
        given = {
            f"x-agl-{k.replace('_', '-')}": quote(v, errors="surrogatepass")
            for k, v in named.items()
            if v
        }
        return {**self.key(attempt), **given}

    def key(self, attempt: Attempt) -> dict[str, str]:
        """The header that opens an attempt."""
        return {
            "Authorization": f"Bearer {self.gateway.attempt_key(attempt.rollout_id, attempt.id)}"
        }

    def post(self, headers: dict[str, str], *, path: str = "/v1/chat/completions", **body: Any):
        return self.session.post(self.gateway.url + path, json={**ASK, **body}, headers=headers)

    async def ask(self, attempt: Attempt, agent: str = "writer", **body: Any) -> dict[str, Any]:
        async with self.post(self.headers(attempt, agent), **body) as answer:
            assert answer.status == 200, await answer.text()
            if not body.get("stream"):
                return await answer.json()
            return {"chunks": events(await answer.read())}

    async def calls(self, attempt: Attempt) -> list[ModelCall]:
        """Seal the attempt; its records, in order."""
        await self.gateway.seal(attempt.id)
        spans = await self.store.spans([attempt.rollout_id])
        return [span.call for span in spans if span.call is not None]

    async def until(self, condition: Callable[[], Any]) -> None:
        """Give the loop turns until something without an event of its own has happened."""
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def idle(self) -> None:
        """Wait until the gateway serves nobody and the backend generates nothing."""
        await self.until(lambda: not (self.gateway.in_flight or self.server.in_flight))

    async def stored(self, attempt: Attempt) -> None:
        """Wait until the store holds a record of the attempt."""
        while not await self.store.spans([attempt.rollout_id]):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def events(data: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.fixture
async def make_world() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def make(
            options: FakeOptions | None = None, gateway: GatewayOptions | None = None
        ) -> World:
            world = World()
            await stack.enter_async_context(world.stack)
            await world.start(options, gateway)
            return world

        yield make


@pytest.fixture
async def world(make_world: Any) -> World:
    return await make_world()
