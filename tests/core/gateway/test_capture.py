from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from agl_testing.fake_openai import FakeOptions, FakeReply
from agl_testing.vocabulary import decode

from agl_core.types import Limits

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


def assert_equal(call: Any, answered: Any) -> None:
    """The record is exactly what the backend says it sampled."""
    assert call.prompt_token_ids.tolist() == answered.prompt_token_ids
    assert call.response_id == answered.id
    assert len(call.choices) == len(answered.choices)
    for choice, truth in zip(call.choices, answered.choices, strict=True):
        assert choice.token_ids.tolist() == truth.token_ids
        assert choice.logprobs.tolist() == truth.logprobs
        assert choice.text == truth.text
        assert choice.reasoning == truth.reasoning
        assert choice.tool_calls == truth.tool_calls
        assert choice.finish_reason == truth.finish_reason
        assert decode(choice.token_ids) == truth.raw_text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_trained_call_is_recorded_exactly_and_hidden(
    world: Any, stream: bool, n: int
) -> None:
    attempt = await world.attempt()
    answer = await world.ask(attempt, stream=stream, n=n, tools=TOOLS, top_k=0)
    for payload in answer.get("chunks", [answer]):
        assert payload["model"] == "gpt-x"
        assert "prompt_token_ids" not in payload
        assert payload["choices"]
        for choice in payload["choices"]:
            assert "token_ids" not in choice
            assert choice["logprobs"] is None
        assert ("usage" in payload) is not stream
    (call,) = await world.calls(attempt)
    assert_equal(call, world.server.log[0])
    assert (call.agent, call.policy, call.trainable) == ("writer", "trained", True)
    assert (call.complete, call.error, call.status_code) == (True, "", 200)
    assert (call.streamed, call.tries, call.superseded) == (stream, 1, False)
    assert call.model == "gpt-x"
    assert call.tools == TOOLS
    assert call.messages[0]["content"] == "héllo 你好 👋"
    assert call.sampling.n == n
    assert call.sampling.extra == {"top_k": 0}
    assert call.started_ns <= (call.first_token_ns or call.started_ns) <= call.ended_ns
    assert (call.first_token_ns is not None) is stream
    sent = world.server.log[0]
    assert sent.body["model"] == "weights-1"
    assert sent.body["temperature"] == sent.body["top_p"] == 1.0
    assert not [name for name in sent.headers if name.startswith("x-agl-")]
    assert "gpt-x" not in str(sent.headers)
    assert world.gateway.losses.counts == {}


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_and_tool_calls(world: Any, stream: bool) -> None:
    calls = [{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": "{}"}]
    world.server.script = lambda _: FakeReply(text="so", reasoning="let me", tool_calls=calls)
    attempt = await world.attempt()
    await world.ask(attempt, stream=stream, tools=TOOLS)
    (call,) = await world.calls(attempt)
    assert_equal(call, world.server.log[0])
    assert [c["function"]["name"] for c in call.choices[0].tool_calls] == ["add", "sub"]


async def test_what_the_client_asks_for_it_gets(world: Any) -> None:
    attempt = await world.attempt()
    wants = {"return_token_ids": True, "logprobs": True}
    plain = await world.ask(attempt, **wants)
    streamed = await world.ask(
        attempt, stream=True, stream_options={"include_usage": True}, **wants
    )
    first, second = world.server.log
    assert plain["prompt_token_ids"] == first.prompt_token_ids
    assert plain["choices"][0]["token_ids"] == first.choices[0].token_ids
    assert len(plain["choices"][0]["logprobs"]["content"]) == len(first.choices[0].logprobs)
    chunks = streamed["chunks"]
    assert chunks[0]["prompt_token_ids"] == second.prompt_token_ids
    assert chunks[-1]["usage"] == second.usage
    rows = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [i for row in rows for i in row.get("token_ids", [])] == second.choices[0].token_ids
    for call, answered in zip(await world.calls(attempt), world.server.log, strict=True):
        assert_equal(call, answered)


@pytest.mark.parametrize(
    ("agent", "headers"),
    [("judge", {}), ("writer", {"trainable": "0"}), ("@selector", {})],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_others_are_recorded_without_injection(
    world: Any, agent: str, headers: dict[str, str], stream: bool
) -> None:
    attempt = await world.attempt(metadata={"sampling": {"temperature": 0.1, "max_tokens": 3}})
    async with world.post(world.headers(attempt, agent, **headers), stream=stream) as answer:
        await answer.read()
    (call,) = await world.calls(attempt)
    assert not call.trainable
    assert call.complete
    assert call.choices[0].text == "héllo 你好 👋"
    assert call.choices[0].token_ids.tolist() == []
    assert call.logprobs_mode == "none"
    sent = world.server.log[0].body
    assert not {"return_token_ids", "logprobs", "stream_options", "temperature"} & sent.keys()
    assert "max_tokens" not in sent


async def test_nothing_is_rewritten_when_nothing_has_to_be(world: Any) -> None:
    weird = b'data:{"choices":[],\r\ndata: "x":  1}\r\n\r\n: ping\r\n\r\ndata: [DONE]\r\n\r\n'
    world.server.cut = lambda data: [data, weird[:30], weird[30:]]
    attempt = await world.attempt()
    headers = world.headers(attempt, "judge")
    async with world.post(headers, stream=True, model="weights-1") as answer:
        assert (await answer.read()).endswith(b"data: [DONE]\n\n" + weird)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64])
async def test_stream_cut_anywhere_gives_the_same_record(world: Any, size: int) -> None:
    def cut(data: bytes) -> list[bytes]:
        wild = b": hi\r\n\r\n" + data.replace(b"\n", b"\r\n").replace(b"data: ", b"data:")
        wild = wild.removesuffix(b"\r\n")
        return [wild[k : k + size] for k in range(0, len(wild), size)]

    world.server.cut = cut
    attempt = await world.attempt()
    answer = await world.ask(attempt, stream=True)
    text = [c["choices"][0]["delta"].get("content") or "" for c in answer["chunks"]]
    assert "".join(text) == "héllo 你好 👋"
    (call,) = await world.calls(attempt)
    assert_equal(call, world.server.log[0])
    assert call.complete


async def test_chunks_are_forwarded_as_they_come(world: Any) -> None:
    go = asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        if position == 3:
            await go.wait()

    world.server.before_send = before_send
    attempt = await world.attempt()
    async with world.post(world.headers(attempt), stream=True) as answer:
        seen = b""
        while seen.count(b"\n\n") < 3:
            seen += await answer.content.readany()
        go.set()
        assert (await answer.read()).endswith(b"data: [DONE]\n\n")


def drop_logprob(payload: dict[str, Any]) -> None:
    content = (payload["choices"][0].get("logprobs") or {}).get("content")
    if content:
        content.pop()


def drop_ids(payload: dict[str, Any]) -> None:
    for choice in payload["choices"]:
        if choice.get("token_ids"):
            choice["token_ids"] = choice["token_ids"][:-1]
            choice["logprobs"]["content"] = choice["logprobs"]["content"][:-1]


def drop_id_of_second_choice(payload: dict[str, Any]) -> None:
    for choice in payload["choices"]:
        if choice["index"] == 1:
            choice.pop("token_ids", None)
            choice["logprobs"] = None


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tamper", "error"),
    [
        (drop_logprob, "log-probabilities"),
        (drop_ids, "returned the ids of"),
        (drop_id_of_second_choice, "missing"),
    ],
)
async def test_contradicting_tokens_are_marked(
    world: Any, tamper: Any, error: str, stream: bool
) -> None:
    dropped: list[bool] = []

    def once(payload: dict[str, Any]) -> None:
        ids = [c for c in payload["choices"] if c.get("token_ids")]
        if ids and (tamper is drop_id_of_second_choice or not dropped):
            dropped.append(True)
            tamper(payload)

    world.server.tamper = once
    attempt = await world.attempt()
    await world.ask(attempt, stream=stream, n=2)
    (call,) = await world.calls(attempt)
    assert error in call.error
    (span,) = await world.store.spans([attempt.rollout_id])
    assert span.status == "error"


async def test_missing_tokens_are_left_empty(make_world: Any) -> None:
    world = await make_world(FakeOptions(token_ids=False))
    attempt = await world.attempt()
    await world.ask(attempt)
    (call,) = await world.calls(attempt)
    assert not call.prompt_token_ids
    assert not call.choices[0].token_ids


async def test_span_tells_whose_call_it_was(world: Any) -> None:
    attempt = await world.attempt()
    headers = world.headers(attempt, agent_run="run_1", call="call_1")
    async with world.post(headers) as answer:
        await answer.read()
    await world.gateway.seal(attempt.id)
    (span,) = await world.store.spans([attempt.rollout_id])
    assert (span.kind.value, span.call_id, span.agent) == ("llm", "call_1", "writer")
    assert (span.agent_run_id, span.call.agent_run_id) == ("run_1", "run_1")
    assert span.attributes["gen_ai.request.model"] == "gpt-x"
    assert span.attributes["gen_ai.response.model"] == "weights-1"
    assert span.attributes["gen_ai.usage.output_tokens"] == len(span.call.choices[0].token_ids)


async def test_fifty_interleaved_attempts_never_mix(world: Any) -> None:
    barrier: list[Any] = []
    release = asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        if position == 0:
            barrier.append(answered)
            if len(barrier) >= 50:
                release.set()
            await release.wait()

    world.server.before_send = before_send
    attempts = [await world.attempt(limits=Limits(timeout_s=600, lease_s=600)) for _ in range(50)]

    async def run(number: int, attempt: Any) -> None:
        for turn, agent in enumerate(("planner", "writer")):
            messages = [{"role": "user", "content": f"same {turn}"}]
            await world.ask(attempt, agent, messages=messages, stream=number % 2 == turn)

    await asyncio.gather(*(run(k, attempt) for k, attempt in enumerate(attempts)))
    truth = {answered.id: answered for answered in world.server.log}
    assert len(truth) == 100
    seen: Counter[str] = Counter()
    for attempt in attempts:
        calls = await world.calls(attempt)
        assert [call.agent for call in calls] == ["planner", "writer"]
        for call in calls:
            seen[call.response_id] += 1
            assert_equal(call, truth[call.response_id])
    assert seen == Counter(truth.keys())


async def test_content_and_arguments_that_are_no_text_are_kept_as_json(world: Any) -> None:
    parts = [{"type": "text", "text": "hi"}]
    arguments = {"a": 1}

    def tamper(body: dict[str, Any]) -> None:
        message = body["choices"][0]["message"]
        message["content"] = parts
        function = {"name": "add", "arguments": arguments}
        message["tool_calls"] = [{"id": "c1", "type": "function", "function": function}]

    world.server.tamper = tamper
    attempt = await world.attempt()
    answer = await world.ask(attempt)
    assert answer["choices"][0]["message"]["content"] == parts
    (call,) = await world.calls(attempt)
    assert json.loads(call.choices[0].text) == parts
    (made,) = call.choices[0].tool_calls
    assert json.loads(made["function"]["arguments"]) == arguments


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_of_other_types_is_an_error_that_names_the_field(
    world: Any, stream: bool
) -> None:
    def tamper(body: dict[str, Any]) -> None:
        for choice in body["choices"]:
            if "token_ids" in choice:
                choice["token_ids"] = "1, 2, 3"

    world.server.tamper = tamper
    attempt = await world.attempt()
    async with world.post(world.headers(attempt), stream=stream) as answer:
        assert answer.status == 200
        assert b"1, 2, 3" not in await answer.read()
    (call,) = await world.calls(attempt)
    assert "token_ids" in call.error
    (span,) = await world.store.spans([attempt.rollout_id])
    assert span.status == "error"


def _without_usage(payload: dict[str, Any]) -> None:
    payload.pop("usage", None)


def _null_usage(payload: dict[str, Any]) -> None:
    payload["usage"] = None


def _empty_usage(payload: dict[str, Any]) -> None:
    payload["usage"] = {}


@pytest.mark.parametrize("tamper", [_without_usage, _null_usage, _empty_usage])
async def test_ids_that_no_usage_confirms_are_marked(world: Any, tamper: Any) -> None:
    """B3: a stream with the ids of its tail only, and no usage to compare their number with."""
    streamed: list[bool] = []

    def tail_only(payload: dict[str, Any]) -> None:
        tamper(payload)
        for row in payload["choices"]:
            if row.get("token_ids"):
                streamed.append(True)
                if len(streamed) <= 3:
                    del row["token_ids"]
                    row["logprobs"] = None

    world.server.tamper = tail_only
    attempt = await world.attempt()
    await world.ask(attempt, stream=True)
    (call,) = await world.calls(attempt)
    assert 0 < len(call.choices[0].token_ids) < len(world.server.log[0].choices[0].token_ids)
    assert "nothing confirms" in call.error


@pytest.mark.parametrize("stream", [False, True])
async def test_prompt_ids_are_compared_with_the_usage(world: Any, stream: bool) -> None:
    """B3: ``usage.prompt_tokens`` states how many ids the prompt has."""

    def tamper(payload: dict[str, Any]) -> None:
        if payload.get("prompt_token_ids"):
            payload["prompt_token_ids"] = payload["prompt_token_ids"][1:]

    world.server.tamper = tamper
    attempt = await world.attempt()
    await world.ask(attempt, stream=stream)
    (call,) = await world.calls(attempt)
    assert "read a prompt of" in call.error


@pytest.mark.parametrize("where", ["prompt", "answer"])
@pytest.mark.parametrize("wrong", [2**31, 10**30, -1, -(10**30), 50_000_000])
async def test_ids_outside_the_vocabulary_are_marked(world: Any, where: str, wrong: int) -> None:
    """A3: no id but one of the model's own is ever recorded as true."""

    def tamper(payload: dict[str, Any]) -> None:
        ids = (
            payload["prompt_token_ids"] if where == "prompt" else payload["choices"][0]["token_ids"]
        )
        ids[0] = wrong

    world.server.tamper = tamper
    await world.route("trained", ("writer",), trainable=True, vocab_size=50_000_000)
    attempt = await world.attempt()
    await world.ask(attempt)
    (call,) = await world.calls(attempt)
    assert f"token id {wrong} " in call.error
    assert call.complete


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["error", "abandoned"])
async def test_an_answer_that_was_given_up_is_incomplete(
    world: Any, reason: str, stream: bool
) -> None:
    """B4: an unknown finish reason is not the end of an answer."""

    def tamper(payload: dict[str, Any]) -> None:
        for row in payload["choices"]:
            if row.get("finish_reason"):
                row["finish_reason"] = reason

    world.server.tamper = tamper
    attempt = await world.attempt()
    answer = await world.ask(attempt, stream=stream)
    assert answer.get("chunks", [answer])[-1]["choices"][0]["finish_reason"] == reason
    (call,) = await world.calls(attempt)
    assert not call.complete
    assert reason in call.error


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_choice_is_no_contradiction(world: Any, stream: bool) -> None:
    """C8: of two choices one ended at once; the ids of the other are all there."""

    def tamper(payload: dict[str, Any]) -> None:
        for row in payload["choices"]:
            if row["index"] == 0:
                row |= {"token_ids": [], "logprobs": None}
                row["message" if "message" in row else "delta"]["content"] = ""
        if payload.get("usage"):
            payload["usage"]["completion_tokens"] //= 2

    world.server.tamper = tamper
    attempt = await world.attempt()
    await world.ask(attempt, stream=stream, n=2)
    (call,) = await world.calls(attempt)
    assert [bool(choice.token_ids) for choice in call.choices] == [False, True]
    assert call.error == ""
