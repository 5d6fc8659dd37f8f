"""The record equals what openai's own client makes of the bytes that it was sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import openai
import pytest
from agl_endpoints import HttpBackend
from agl_records._conversations import answer_message
from agl_responses._request import read
from agl_testing.fake_openai import FakeOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from agl_core.gateway import GatewayServer, Payload
from agl_core.gateway._capture import ReceivedAnswer
from agl_core.gateway._replay import RecordBackend, RecordedCall
from agl_core.gateway._stream import DONE, EventParser
from agl_core.store._memory import MemoryStore
from agl_core.types import Choice, ModelCall, Policy, Rollout, Task

CASES = 40
PIECES = ["hé", " 👋", "{", '"', "\\n", "\ud83d", "\ude00", " ", "x"]
MESSAGES: Any = [{"role": "user", "content": "hi"}]


class Setup:
    """One attempt, whose backend answers with the given bytes over HTTP."""

    def __init__(self, server: FakeOpenAI, gateway: GatewayServer, store: MemoryStore) -> None:
        self.server, self.gateway, self.store = server, gateway, store
        self.number = 0
        self.stack = AsyncExitStack()

    async def client(self) -> openai.AsyncOpenAI:
        self.number += 1
        rollout = Rollout(id=f"ro_{self.number}", task=Task(id="t"), run_id="run")
        await self.store.enqueue([rollout])
        (claim,) = await self.store.claim("w", timeout_s=1.0)
        self.attempt = claim.attempt
        await self.gateway.open(claim.rollout, claim.attempt)
        base = f"{self.gateway.url}/r/{rollout.id}/a/{claim.attempt.id}/agent/writer/v1"
        key = self.gateway.attempt_key(rollout.id, claim.attempt.id)
        client = openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0)
        return await self.stack.enter_async_context(client)

    async def record(self) -> ModelCall:
        await self.gateway.seal(self.attempt.id)
        (span,) = await self.store.spans([self.attempt.rollout_id])
        assert span.call is not None
        assert (span.call.complete, span.call.error) == (True, "")
        return span.call


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    async with AsyncExitStack() as stack:
        store = MemoryStore()
        await store.open()
        stack.push_async_callback(store.close)
        gateway = GatewayServer(store, dialects={"POST /responses": read})
        server = await stack.enter_async_context(FakeOpenAI())
        backend = HttpBackend(server.base_url, model="weights")
        stack.push_async_callback(backend.close)
        await gateway.route(Policy(name="frozen", agents=("*",), trainable=False), backend)
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        made = Setup(server, gateway, store)
        async with made.stack:
            yield made


def deltas_of(random: Random, *, refuses: bool, older: bool) -> list[dict[str, Any]]:
    """An answer as servers stream it: texts and fragments of calls, by turns."""

    def text() -> str:
        return "".join(random.choices(PIECES, k=random.randint(1, 3)))

    found: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    field = "refusal" if refuses else "content"
    found += [{field: text()} for _ in range(random.randint(0, 4))]
    for index in range(random.randint(0, 3)):
        name = random.choice(["add", "sub"])
        head = {"id": f"call_{index}", "type": "function"}
        function = {"name": name, "arguments": ""}
        found.append({"tool_calls": [{"index": index, **head, "function": function}]})
    calls = len(found) - 1 - sum(field in delta for delta in found[1:])
    for _ in range(random.randint(0, 5) if calls else 0):
        part = {"index": random.randrange(calls), "function": {"arguments": text()}}
        found.append({"tool_calls": [part]})
    if older and not calls:
        found.append({"function_call": {"name": "add", "arguments": ""}})
        found += [{"function_call": {"arguments": text()}} for _ in range(2)]
    return found


def streamed(random: Random, deltas: list[dict[str, Any]], finish: str) -> list[bytes]:
    """Those deltas on the wire, cut anywhere."""
    base = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    rows = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    rows.append({"index": 0, "delta": {}, "finish_reason": finish})
    datas = [json.dumps({**base, "choices": [row]}) for row in rows]
    wire = "".join(f"data: {data}\n\n" for data in [*datas, "[DONE]"]).encode()
    size = random.choice([1, 5, 31, len(wire)])
    return [wire[at : at + size] for at in range(0, len(wire), size)]


def said(message: Any) -> dict[str, Any]:
    """What a message holds, as the client has it; empty is none."""
    plain = message if isinstance(message, dict) else message.model_dump(exclude_none=True)
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in plain.get("tool_calls") or ()
    ]
    older = plain.get("function_call")
    fields = {"content": plain.get("content"), "refusal": plain.get("refusal")}
    fields |= {"calls": calls, "function": older and (older["name"], older["arguments"])}
    return {name: value for name, value in fields.items() if value}


def of_choice(choice: Choice) -> dict[str, Any]:
    return said(answer_message(choice))


async def replayed(call: ModelCall, *, stream: bool) -> Choice:
    """The choice that a replay of the record answers with."""
    reply = await RecordBackend(RecordedCall(call, {}), "m").chat(
        json.dumps({"stream": stream}).encode(), headers={}, timeout_s=1.0
    )
    data = b"".join([piece async for piece in reply.body()])
    answer, parser = ReceivedAnswer(1), EventParser()
    events = [event.data for event in parser.feed(data)] if stream else [data]
    for event in events:
        if event != DONE:
            answer.add(Payload(event), whole=not stream)
    (choice,) = answer.choices
    return choice


@pytest.mark.parametrize("seed", range(CASES))
async def test_record_export_and_replay_equal_the_clients_own_answer(
    setup: Setup, seed: int
) -> None:
    """B1, B5, C13: text, refusal, calls in either form and finish reason, streamed and plain."""
    random = Random(seed)
    deltas = deltas_of(random, refuses=random.random() < 0.3, older=random.random() < 0.4)
    finish = random.choice(["stop", "tool_calls", "length", "content_filter", "function_call"])
    setup.server.cut = lambda _: streamed(random, deltas, finish)
    client = await setup.client()
    state = ChatCompletionStreamState()
    chunks = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    async for chunk in chunks:
        state.handle_chunk(chunk)
    heard = state.current_completion_snapshot.choices[0]
    call = await setup.record()
    (choice,) = call.choices
    assert said(heard.message) == of_choice(choice)
    assert heard.finish_reason == choice.finish_reason == finish
    for stream in (False, True):
        again = await replayed(call, stream=stream)
        assert (of_choice(again), again.finish_reason) == (of_choice(choice), finish)
    await check_plain(setup, choice)
    await check_responses(setup, random, deltas, finish, choice)


async def check_plain(setup: Setup, streamed: Choice) -> None:
    """The same answer whole."""
    message = {"role": "assistant", **answer_message(streamed)}

    def tamper(body: dict[str, Any]) -> None:
        body["choices"][0] |= {"message": message, "finish_reason": streamed.finish_reason}

    setup.server.tamper = tamper
    client = await setup.client()
    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    (choice,) = (await setup.record()).choices
    assert said(answer.choices[0].message) == of_choice(choice) == of_choice(streamed)
    setup.server.tamper = None


async def check_responses(
    setup: Setup, random: Random, deltas: list[dict[str, Any]], finish: str, expected: Choice
) -> None:
    """A Responses client's own answer says the same."""
    setup.server.cut = lambda _: streamed(random, deltas, finish)
    client = await setup.client()
    final: Any = None
    async for event in await client.responses.create(model="m", input="hi", stream=True):
        if event.type in ("response.completed", "response.incomplete"):
            final = event.response
    (choice,) = (await setup.record()).choices
    assert of_choice(choice) == of_choice(expected)
    assert final.status == ("incomplete" if finish in ("length", "content_filter") else "completed")
    assert final.output_text == choice.text
    parts = [part for item in final.output if item.type == "message" for part in item.content]
    assert "".join(p.refusal for p in parts if p.type == "refusal") == choice.refusal
    made = [(o.name, o.arguments) for o in final.output if o.type == "function_call"]
    calls = [tuple(each["function"].values()) for each in choice.tool_calls]
    older = [tuple(choice.function_call.values())] if choice.function_call else []
    assert made == [*calls, *older]
