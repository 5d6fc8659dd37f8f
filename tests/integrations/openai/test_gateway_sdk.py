"""OpenAI's own client against the gateway: what it parses, retries and raises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from agl_endpoints import HttpBackend
from agl_testing.fake_openai import FakeOpenAI, FakeReply

from agl_core.gateway import GatewayServer
from agl_core.store._memory import MemoryStore
from agl_core.types import Attempt, ModelCall, Policy, Rollout, Task

MESSAGES: Any = [{"role": "user", "content": "héllo 你好 👋"}]
ADD: Any = {"name": "add", "parameters": {"type": "object"}, "strict": True}
TOOLS: Any = [{"type": "function", "function": ADD}]


@dataclass
class Setup:
    server: FakeOpenAI
    gateway: GatewayServer
    store: MemoryStore
    attempt: Attempt

    @property
    def base_url(self) -> str:
        attempt = self.attempt
        return f"{self.gateway.url}/r/{attempt.rollout_id}/a/{attempt.id}/agent/writer/v1"

    @property
    def api_key(self) -> str:
        return self.gateway.attempt_key(self.attempt.rollout_id, self.attempt.id)

    async def calls(self) -> list[ModelCall]:
        await self.gateway.seal(self.attempt.id)
        spans = await self.store.spans([self.attempt.rollout_id])
        return [span.call for span in spans if span.call is not None]


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    store = MemoryStore()
    await store.open()
    gateway = GatewayServer(store)
    async with FakeOpenAI() as server:
        backend = HttpBackend(server.base_url, model="weights")
        await gateway.route(Policy(name="trained", agents=("writer",), trainable=True), backend)
        await gateway.start()
        await store.enqueue([Rollout(id="ro_1", task=Task(id="t"), run_id="run")])
        (claim,) = await store.claim("w", timeout_s=1.0)
        await gateway.open(claim.rollout, claim.attempt)
        yield Setup(server, gateway, store, claim.attempt)
        await gateway.stop()
        await backend.close()
    await store.close()


@pytest.fixture
async def client(setup: Setup) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=setup.base_url, api_key=setup.api_key, max_retries=2
    ) as client:
        yield client


def assert_recorded(call: ModelCall, setup: Setup, answered: Any) -> None:
    assert call.complete
    assert call.error == ""
    assert call.prompt_token_ids.tolist() == answered.prompt_token_ids
    for choice, truth in zip(call.choices, answered.choices, strict=True):
        assert (choice.token_ids.tolist(), choice.logprobs.tolist()) == (
            truth.token_ids,
            truth.logprobs,
        )


async def test_plain(setup: Setup, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model="gpt-x", messages=MESSAGES, n=2)
    assert answer.model == "gpt-x"
    assert [choice.message.content for choice in answer.choices] == ["héllo 你好 👋"] * 2
    assert "prompt_token_ids" not in (answer.model_extra or {})
    (call,) = await setup.calls()
    assert call.response_id == answer.id
    assert_recorded(call, setup, setup.server.log[0])


async def test_streamed(setup: Setup, client: openai.AsyncOpenAI) -> None:
    setup.server.cut = lambda data: [data[k : k + 3] for k in range(0, len(data), 3)]
    text = ""
    stream = await client.chat.completions.create(model="gpt-x", messages=MESSAGES, stream=True)
    async for chunk in stream:
        assert chunk.model == "gpt-x"
        assert chunk.usage is None
        text += chunk.choices[0].delta.content or ""
    assert text == "héllo 你好 👋"
    (call,) = await setup.calls()
    assert call.streamed
    assert_recorded(call, setup, setup.server.log[0])


@pytest.mark.parametrize("stream", [False, True])
async def test_tools(setup: Setup, client: openai.AsyncOpenAI, stream: bool) -> None:
    tool = {"name": "add", "arguments": {"a": 1}}
    setup.server.script = lambda _: FakeReply(tool_calls=[tool])
    create = client.chat.completions
    if stream:
        async with create.stream(model="gpt-x", messages=MESSAGES, tools=TOOLS) as events:
            answer = await events.get_final_completion()
    else:
        answer = await create.create(model="gpt-x", messages=MESSAGES, tools=TOOLS)
    (parsed,) = answer.choices[0].message.tool_calls or []
    assert parsed.type == "function"
    assert (parsed.function.name, parsed.function.arguments) == ("add", '{"a": 1}')
    (call,) = await setup.calls()
    assert_recorded(call, setup, setup.server.log[0])
    assert call.choices[0].tool_calls[0]["id"] == parsed.id


async def test_raw_response_stream(setup: Setup, client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(
        model="gpt-x", messages=MESSAGES, stream=True
    )
    call_id = raw.headers["x-agl-call"]
    text = [chunk.choices[0].delta.content or "" async for chunk in raw.parse()]
    assert "".join(text) == "héllo 你好 👋"
    (call,) = await setup.calls()
    assert call.id == call_id


async def test_sync_client_in_a_thread(setup: Setup) -> None:
    def ask() -> str | None:
        with openai.OpenAI(base_url=setup.base_url, api_key=setup.api_key) as client:
            answer = client.chat.completions.create(model="gpt-x", messages=MESSAGES)
            return answer.choices[0].message.content

    assert await asyncio.to_thread(ask) == "héllo 你好 👋"
    (call,) = await setup.calls()
    assert_recorded(call, setup, setup.server.log[0])


async def test_retries_are_the_clients(setup: Setup, client: openai.AsyncOpenAI) -> None:
    setup.server.fail(1, status=500, body={"error": {"message": "x"}})
    await client.chat.completions.create(model="gpt-x", messages=MESSAGES)
    calls = await setup.calls()
    assert [call.status_code for call in calls] == [500, 200]


async def test_refusals_are_raised_without_retries(
    setup: Setup, client: openai.AsyncOpenAI
) -> None:
    await setup.gateway.seal(setup.attempt.id)
    with pytest.raises(openai.APIStatusError, match="has ended") as caught:
        await client.chat.completions.create(model="gpt-x", messages=MESSAGES)
    assert caught.value.status_code == 410
    assert setup.gateway.losses.counts == {"late_calls": 1}
    async with openai.AsyncOpenAI(base_url=setup.base_url, api_key="wrong") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model="gpt-x", messages=MESSAGES)


async def test_a_broken_stream_raises(setup: Setup, client: openai.AsyncOpenAI) -> None:
    async def before_send(answered: Any, position: int) -> None:
        if position == 4:
            raise ConnectionResetError

    setup.server.before_send = before_send
    stream = await client.chat.completions.create(model="gpt-x", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="broke off"):
        async for _ in stream:
            pass


async def test_breaking_off_a_stream_stops_the_backend(
    setup: Setup, client: openai.AsyncOpenAI
) -> None:
    never = asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        if position == 4:
            await never.wait()

    setup.server.before_send = before_send
    stream = await client.chat.completions.create(model="gpt-x", messages=MESSAGES, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await setup.server.ended(1)
    assert setup.server.log[0].closed_early
