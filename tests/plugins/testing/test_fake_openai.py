from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import aiohttp
from agl_testing.fake_openai import FakeOpenAI, FakeOptions, FakeReply
from agl_testing.vocabulary import EOS_ID, decode, encode
from hypothesis import given
from hypothesis import strategies as st

ASK = {"model": "m", "messages": [{"role": "user", "content": "héllo 你好 👋"}]}
TOKENS = {"return_token_ids": True, "logprobs": True}


async def post(server: FakeOpenAI, **body: Any) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.base_url + "/chat/completions", json={**ASK, **body}) as answer,
    ):
        return {"status": answer.status, **await answer.json()}


async def stream(server: FakeOpenAI, **body: Any) -> list[dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            server.base_url + "/chat/completions", json={**ASK, "stream": True, **body}
        ) as answer,
    ):
        text = await answer.text()
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


@given(text=st.text(max_size=60), seed=st.integers(0, 1000))
def test_ids_decode_to_the_text(text: str, seed: int) -> None:
    assert decode(encode(text, random=Random(seed))) == text
    assert decode([*encode(text, random=None), EOS_ID]) == text


async def test_equal_requests_get_different_ids_for_the_same_text() -> None:
    async with FakeOpenAI() as server:
        first = await post(server, **TOKENS)
        second = await post(server, **TOKENS)
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    assert first["choices"][0]["token_ids"] != second["choices"][0]["token_ids"]
    assert first["prompt_token_ids"] != second["prompt_token_ids"]
    for answer, logged in zip((first, second), server.log, strict=True):
        choice = answer["choices"][0]
        assert choice["token_ids"] == logged.choices[0].token_ids
        assert decode(choice["token_ids"]) == choice["message"]["content"]
        assert choice["token_ids"][-1] == EOS_ID
        entries = choice["logprobs"]["content"]
        assert [entry["logprob"] for entry in entries] == logged.choices[0].logprobs
        assert len(entries) == len(choice["token_ids"])


async def test_extra_fields_come_only_when_asked_for() -> None:
    async with FakeOpenAI() as server:
        answer = await post(server)
    assert "prompt_token_ids" not in answer
    assert "token_ids" not in answer["choices"][0]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == len(server.log[0].choices[0].token_ids)


async def test_stream_carries_prompt_ids_once_and_token_deltas() -> None:
    async with FakeOpenAI() as server:
        chunks = await stream(server, **TOKENS, n=2, stream_options={"include_usage": True})
    assert [k for k, chunk in enumerate(chunks) if "prompt_token_ids" in chunk] == [0]
    assert chunks[0]["prompt_token_ids"] == server.log[0].prompt_token_ids
    assert chunks[-1]["usage"] == server.log[0].usage
    for logged in server.log[0].choices:
        rows = [c for k in chunks for c in k["choices"] if c["index"] == logged.index]
        assert [i for row in rows for i in row.get("token_ids", [])] == logged.token_ids
        assert "".join(row["delta"].get("content", "") for row in rows) == logged.text
        assert rows[-1]["finish_reason"] == "stop"


async def test_tool_calls_plain_and_streamed() -> None:
    reply = FakeReply(reasoning="hm", tool_calls=[{"name": "add", "arguments": {"a": 1}}])
    async with FakeOpenAI(lambda _: reply) as server:
        plain = await post(server, **TOKENS)
        chunks = await stream(server, **TOKENS)
    message = plain["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning"] == "hm"
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert plain["choices"][0]["finish_reason"] == "tool_calls"
    deltas = [d for c in chunks for d in c["choices"][0]["delta"].get("tool_calls", [])]
    assert deltas[0]["function"]["name"] == "add"
    assert "".join(d["function"]["arguments"] for d in deltas) == '{"a": 1}'
    logged = server.log[1].choices[0]
    assert decode(logged.token_ids) == logged.raw_text


async def test_long_replies_end_by_length() -> None:
    async with FakeOpenAI(lambda _: "a long reply") as server:
        answer = await post(server, **TOKENS, max_tokens=3)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["token_ids"]) == 3


async def test_stable_spelling_makes_prompts_extend() -> None:
    async with FakeOpenAI(lambda _: "yes", FakeOptions(stable=True)) as server:
        await post(server)
        turn = [*ASK["messages"], {"role": "assistant", "content": "yes"}]
        await post(server, messages=[*turn, {"role": "user", "content": "sure?"}])
    first, second = server.log
    path = first.prompt_token_ids + first.choices[0].token_ids
    assert second.prompt_token_ids[: len(path)] == path


async def test_failures_then_ok_and_too_long_prompts() -> None:
    async with FakeOpenAI(options=FakeOptions(max_model_len=200)) as server:
        server.fail(1, status=503)
        assert (await post(server))["status"] == 503
        assert (await post(server))["status"] == 200
        long = await post(server, messages=[{"role": "user", "content": "x" * 500}])
    assert long["error"]["code"] == "context_length_exceeded"
    assert [answer.status for answer in server.refused] == [503, 400]


async def test_a_client_that_leaves_is_noticed() -> None:
    never = asyncio.Event()

    async def before_send(answer: Any, position: int) -> None:
        if position == 2:
            await never.wait()

    async with FakeOpenAI() as server, aiohttp.ClientSession() as session:
        server.before_send = before_send
        url = server.base_url + "/chat/completions"
        answer = await session.post(url, json={**ASK, "stream": True})
        await answer.content.readany()
        answer.close()
        await server.ended(1)
        assert server.log[0].closed_early
        assert server.in_flight == 0


def test_runs_on_a_thread_of_its_own() -> None:
    import urllib.request

    with FakeOpenAI() as server:
        request = urllib.request.Request(
            server.base_url + "/chat/completions",
            json.dumps(ASK).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "héllo 你好 👋"
        assert server.wait(1)[0].headers["content-type"] == "application/json"


async def test_stream_can_be_cut_anywhere() -> None:
    async with FakeOpenAI() as server:
        server.cut = lambda data: [data[k : k + 1] for k in range(len(data))]
        chunks = await stream(server)
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert text == "héllo 你好 👋"


async def test_responses_are_answered_and_logged_as_chat_completions() -> None:
    async with FakeOpenAI() as server, aiohttp.ClientSession() as session:
        url = server.base_url + "/responses"
        async with session.post(url, json={"model": "m", "input": "hi"}) as answer:
            whole = await answer.json()
        async with session.post(url, json={"input": "hi", "stream": True}) as answer:
            told = (await answer.text()).splitlines()
        async with session.post(url, json={"input": "hi", "background": True}) as answer:
            assert answer.status == 400
    assert [entry.body["messages"] for entry in server.log] == [
        [{"role": "user", "content": "hi"}]
    ] * 2
    assert [item["content"][0]["text"] for item in whole["output"]] == ["hi"]
    assert whole["id"] == server.log[0].id
    final = json.loads(told[-2].removeprefix("data: "))["response"]
    assert final["id"] == server.log[1].id
    assert final["usage"]["total_tokens"] == server.log[1].usage["total_tokens"]
