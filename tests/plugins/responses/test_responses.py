"""Clients that speak OpenAI Responses get it, and their calls are recorded as chat completions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from agl_responses._answer import ResponseBuilder
from agl_responses._request import ResponsesRequest
from agl_testing.fake_openai import FakeOptions, FakeReply
from hypothesis import given
from hypothesis import strategies as st

from agl_core.gateway import AnswerReader, Payload
from agl_core.interfaces import Problem
from agl_core.types import AttemptStatus, Failure, FailureKind, Limits, ModelCall

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
EVERYTHING = FakeReply(
    reasoning="let me think",
    text="I add",
    tool_calls=[
        {"name": "add", "arguments": {"x": 1}},
        {"name": "add", "arguments": {"x": "你"}},
    ],
)


class Client:
    """Asks one attempt's gateway in the Responses form."""

    def __init__(self, world: Any, attempt: Any, agent: str = "writer") -> None:
        self.world = world
        self.attempt = attempt
        self.agent = agent

    async def post(self, **body: Any) -> tuple[int, Any]:
        url = self.world.gateway.url + PATH
        asked = {"model": "gpt-x", "input": "héllo 👋", **body}
        headers = self.world.headers(self.attempt, self.agent)
        async with self.world.session.post(url, json=asked, headers=headers) as answer:
            kind = answer.content_type
            read = bytearray()
            with suppress(aiohttp.ClientPayloadError):  # a stream whose backend broke off is cut
                async for piece in answer.content.iter_any():
                    read += piece
        told = events(bytes(read)) if kind == "text/event-stream" else json.loads(read)
        return answer.status, told

    async def ask(self, **body: Any) -> dict[str, Any]:
        status, answer = await self.post(**body)
        assert status == 200, answer
        return answer

    async def stream(self, **body: Any) -> list[dict[str, Any]]:
        status, told = await self.post(stream=True, **body)
        assert status == 200, told
        return told

    async def sent(self, **body: Any) -> dict[str, Any]:
        """What the backend was asked."""
        await self.ask(**body)
        return self.world.server.log[-1].body


def chat(**body: Any) -> dict[str, Any]:
    """The chat completion that a request becomes."""
    return json.loads(ResponsesRequest(json.dumps({"input": "hi", **body}).encode()).chat)


@pytest.fixture
async def client(world: Any) -> Client:
    return Client(world, await world.attempt())


def events(data: bytes) -> list[dict[str, Any]]:
    told = [json.loads(row[6:]) for row in data.decode().split("\n") if row.startswith("data: ")]
    names = [row[7:] for row in data.decode().split("\n") if row.startswith("event: ")]
    assert names == [event["type"] for event in told]
    return told


def shape(output: list[dict[str, Any]]) -> list[Any]:
    """Output items without the ids, which each answer has its own."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


async def recorded(client: Client) -> list[ModelCall]:
    return await client.world.calls(client.attempt)


async def test_text_becomes_a_message_and_its_tokens_are_recorded(client: Client) -> None:
    answer = await client.ask(instructions="Be brief", temperature=0.5, metadata={"a": "b"})
    (logged,) = client.world.server.log
    (item,) = answer["output"]
    assert item["role"] == "assistant"
    assert item["content"][0]["text"] == logged.choices[0].text
    assert (answer["id"], answer["model"], answer["status"]) == (logged.id, "gpt-x", "completed")
    assert (answer["instructions"], answer["metadata"]) == ("Be brief", {"a": "b"})
    assert answer["usage"]["input_tokens"] == len(logged.prompt_token_ids)
    assert answer["usage"]["output_tokens"] == len(logged.choices[0].token_ids)
    (call,) = await recorded(client)
    assert call.messages == logged.body["messages"]
    assert [message["role"] for message in call.messages] == ["system", "user"]
    assert call.prompt_token_ids.tolist() == logged.prompt_token_ids
    assert call.choices[0].token_ids.tolist() == logged.choices[0].token_ids
    assert call.choices[0].logprobs.tolist() == logged.choices[0].logprobs
    assert (call.response_id, call.complete, call.sampling.temperature) == (logged.id, True, 0.5)


@pytest.mark.parametrize("agent", ["writer", "other"], ids=["trained", "frozen"])
async def test_a_stream_tells_what_a_whole_answer_says(world: Any, agent: str) -> None:
    client = Client(world, await world.attempt(), agent)
    world.server.script = lambda body: EVERYTHING
    whole = await client.ask(tools=[TOOL])
    told = await client.stream(tools=[TOOL])
    final = told[-1]["response"]
    assert told[-1]["type"] == "response.completed"
    assert shape(final["output"]) == shape(whole["output"])
    kinds = [item["type"] for item in final["output"]]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert final["id"] == world.server.log[-1].id
    assert final["usage"]["output_tokens"] == len(world.server.log[-1].choices[0].token_ids)
    heard(told)
    calls = await recorded(client)
    for call, logged in zip(calls, world.server.log, strict=True):
        assert call.complete
        assert call.choices[0].reasoning == "let me think"
        if agent == "writer":
            assert call.choices[0].token_ids.tolist() == logged.choices[0].token_ids


def heard(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Follow a stream as a client does; the items that its events amount to."""
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    done: set[int] = set()
    for event in told[2:-1]:
        kind, index = event["type"], event["output_index"]
        if kind == "response.output_item.added":
            assert index == len(items)
            items.append(event["item"])
            continue
        assert index not in done
        item = items[index]
        if kind == "response.output_item.done":
            done.add(index)
            assert item == {**event["item"], "status": item["status"]}
            continue
        assert event["item_id"] == item["id"]
        if kind == "response.content_part.added":
            assert event["content_index"] == len(item["content"])
            item["content"].append(event["part"])
        elif kind == "response.function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == item["arguments"]
        elif kind.endswith(".delta"):
            field = "refusal" if "refusal" in kind else "text"
            item["content"][event["content_index"]][field] += event["delta"]
    assert done == set(range(len(items)))
    final = told[-1]["response"]["output"]
    assert [{**item, "status": row["status"]} for item, row in zip(items, final, strict=True)] == (
        final
    )
    return items


DELTAS = st.lists(
    st.one_of(
        st.builds(lambda text: {"content": text}, st.text()),
        st.builds(lambda text: {"reasoning": text}, st.text()),
        st.builds(lambda text: {"reasoning_content": text}, st.text(max_size=3)),
        st.builds(lambda text: {"refusal": text}, st.text(max_size=3)),
        st.builds(
            lambda index, name, text: {
                "tool_calls": [
                    {"index": index, "id": f"call_{index}", "function": {"arguments": text}}
                    | ({"function": {"name": name, "arguments": text}} if name else {})
                ]
            },
            st.integers(0, 2),
            st.sampled_from(["", "add"]),
            st.text(max_size=3),
        ),
    )
)


def chunk_of(**fields: Any) -> Payload:
    return Payload(json.dumps(fields).encode())


@given(DELTAS, st.sampled_from(["stop", "tool_calls", "length", "content_filter"]))
def test_whatever_comes_the_events_amount_to_the_response(
    deltas: list[dict[str, Any]], finish: str
) -> None:
    reader, builder = AnswerReader(), ResponseBuilder({})
    chunks = [
        chunk_of(id="chatcmpl-1", choices=[{"index": 0, "delta": delta}])
        for delta in [{"role": "assistant"}, *deltas]
    ]
    chunks.append(chunk_of(choices=[{"index": 0, "delta": {}, "finish_reason": finish}]))
    sent = [builder.add(delta) for chunk in chunks for delta in reader.read(chunk)]
    told = events(b"".join([*sent, builder.end()]))
    items = heard(told)
    said = [part for item in items for part in item.get("content", ())]
    for kind, field in [("output_text", "content"), ("refusal", "refusal")]:
        text = "".join(part.get("text", part.get("refusal", "")) for part in said if
                       part["type"] == kind)  # fmt: skip
        assert text == "".join(delta.get(field, "") for delta in deltas)
    cut = finish in ("length", "content_filter")
    assert told[-1]["type"] == f"response.{'incomplete' if cut else 'completed'}"
    if not cut:
        assert any(item["type"] != "reasoning" for item in items)


async def test_a_cut_answer_is_incomplete(client: Client) -> None:
    answer = await client.ask(max_output_tokens=3)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["status"] == "incomplete"
    told = await client.stream(max_output_tokens=3)
    assert told[-1]["type"] == "response.incomplete"
    assert [call.sampling.max_tokens for call in await recorded(client)] == [3, 3]


async def test_a_turn_goes_back_as_the_one_message_it_was(client: Client) -> None:
    client.world.server.script = lambda body: EVERYTHING
    first = await client.ask(tools=[TOOL])
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": calls[0]["call_id"], "output": "2"},
        {
            "type": "function_call_output",
            "call_id": calls[1]["call_id"],
            "output": [{"type": "input_text", "text": "3"}],
        },
    ]
    given = [{"role": "user", "content": "add"}, *first["output"], *outputs]
    sent = await client.sent(input=given, tools=[TOOL])
    sampled = client.world.server.log[0].choices[0]
    assert sent["messages"] == [
        {"role": "user", "content": "add"},
        {
            "role": "assistant",
            "content": "I add",
            "reasoning_content": "let me think",
            "tool_calls": sampled.tool_calls,
        },
        {"role": "tool", "content": "2", "tool_call_id": calls[0]["call_id"]},
        {"role": "tool", "content": "3", "tool_call_id": calls[1]["call_id"]},
    ]


def call_item(call_id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def said(role: str, *texts: str, kind: str = "input_text") -> dict[str, Any]:
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


@pytest.mark.parametrize(
    ("given", "roles"),
    [
        ([said("developer", "a"), said("user", "b")], ["system", "user"]),
        ([said("user", "a"), said("assistant", "b", kind="output_text")], ["user", "assistant"]),
        ([said("assistant", "a"), said("assistant", "b")], ["assistant", "assistant"]),
        ([call_item("1"), call_item("2")], ["assistant"]),
        ([call_item("1"), said("assistant", "b"), call_item("2")], ["assistant"]),
        ([{"type": "reasoning", "summary": [], "encrypted_content": "x"}, said("user", "a")],
         ["user"]),
        ([said("assistant", "a"), {"type": "reasoning", "summary": [
            {"type": "summary_text", "text": "b"}]}], ["assistant", "assistant"]),
    ],
)  # fmt: skip
def test_items_become_messages(given: list[dict[str, Any]], roles: list[str]) -> None:
    messages = chat(input=given)["messages"]
    assert [message["role"] for message in messages] == roles
    assert all(isinstance(message["content"], str | None) for message in messages)


def test_several_parts_and_images_stay_parts() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    parts = [{"type": "input_text", "text": "what is this"}, image]
    sent = chat(input=[{"role": "user", "content": parts}])
    assert sent["messages"][0]["content"] == [
        {"type": "text", "text": "what is this"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
    ]


async def test_options_are_said_in_the_words_of_chat_completions(client: Client) -> None:
    schema = {"type": "object", "properties": {}}
    sent = await client.sent(
        tools=[TOOL],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        reasoning={"effort": "low", "summary": "auto"},
        max_output_tokens=50,
        top_p=0.9,
        top_k=5,
        store=True,
        include=["reasoning.encrypted_content"],
        previous_response_id=None,
        truncation="disabled",
        background=False,
    )
    assert sent["tools"] == [
        {
            "type": "function",
            "function": {"name": "add", "parameters": {"type": "object"}, "strict": True},
        }
    ]
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert sent["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }
    assert sent["reasoning_effort"] == "low"
    assert sent["parallel_tool_calls"] is False
    assert (sent["max_completion_tokens"], sent["top_p"], sent["top_k"]) == (50, 0.9, 5)
    ours = {"model", "messages", "seed", "return_token_ids", "logprobs", "temperature"}
    words = {"tools", "tool_choice", "response_format", "reasoning_effort", "parallel_tool_calls"}
    assert sent.keys() == ours | words | {"max_completion_tokens", "top_p", "top_k"}


def test_options_of_tools_are_left_out_where_there_are_none() -> None:
    sent = chat(tools=[], tool_choice="auto", parallel_tool_calls=True)
    assert not sent.keys() & {"tools", "tool_choice", "parallel_tool_calls"}


@pytest.mark.parametrize(
    ("body", "field", "fix"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send all of it"),
        ({"conversation": "conv_1"}, "conversation", "send all of it"),
        ({"background": True}, "background", "wait, or stream"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"truncation": "auto"}, "truncation", "shorten"),
        ({"n": 2}, "n", "/v1/chat/completions"),
        ({"include": ["message.output_text.logprobs"]}, "include", "/v1/chat/completions"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type", "type 'function'"),
        ({"tools": "add"}, "tools", "list"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "'required'"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "'json_schema'"),
        ({"text": "plain"}, "text", "object"),
        ({"input": None}, "input", "text or a list"),
        ({"input": ["hello"]}, "input[0]", "object"),
        ({"input": [{"type": "item_reference", "id": "m"}]}, "input[0].type", "item itself"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "leave this one out"),
        ({"input": [{"role": "critic", "content": "a"}]}, "input[0].role", "developer"),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content", "parts"),
        ({"input": [{**call_item("1"), "arguments": {}}]}, "input[0].arguments", "string"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
         "input[0].content[0].type", "image_url"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
         "input[0].content[0].type", "image_url"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": [
            {"type": "input_image", "image_url": "data:"}]}]},
         "input[0].output[0].type", "only text"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name_with_the_fix(
    body: dict[str, Any], field: str, fix: str
) -> None:
    with pytest.raises(Problem, match=f"^{re.escape(field)}: .*{re.escape(fix)}") as raised:
        chat(**body)
    assert raised.value.status == 400
    assert raised.value.param == field


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"[" * 100_000, b"\xff", b"3"])
def test_a_body_that_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(Problem, match="no Responses request") as raised:
        ResponsesRequest(data)
    assert raised.value.code == "invalid_body"


async def test_a_refusal_has_the_form_of_openai_and_is_recorded(client: Client) -> None:
    status, answer = await client.post(previous_response_id="resp_1")
    error = answer["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == ("previous_response_id", "unsupported_parameter")
    assert not client.world.server.log
    (call,) = await recorded(client)
    assert (call.status_code, call.complete) == (400, False)
    assert "previous_response_id" in call.error


async def test_the_url_names_the_agent(client: Client) -> None:
    world, attempt = client.world, client.attempt
    path = f"/r/{attempt.rollout_id}/a/{attempt.id}/agent/pl%C3%A4ner{PATH}"
    headers = world.key(attempt)
    asked = {"model": "m", "input": "hi"}
    async with world.session.post(world.gateway.url + path, json=asked, headers=headers) as answer:
        assert answer.status == 200
    async with world.session.post(world.gateway.url + PATH, json=asked, headers=headers) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["code"] == "identity_missing"
    (call,) = await recorded(client)
    assert call.agent == "pläner"


async def test_errors_of_the_backend_pass_as_they_are(client: Client) -> None:
    client.world.server.fail(2, status=429)
    for stream in (False, True):
        status, body = await client.post(stream=stream)
        assert status == 429
        assert body["error"]["message"] == "out of order"


async def test_a_prompt_beyond_the_context_is_the_backends_400(make_world: Any) -> None:
    world = await make_world(FakeOptions(max_model_len=4))
    client = Client(world, await world.attempt())
    status, answer = await client.post()
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


def break_after(pieces: int) -> Callable[..., Any]:
    async def before_send(answered: Any, position: int) -> None:
        if position == pieces:
            raise ConnectionError

    return before_send


async def test_a_stream_that_breaks_off_ends_in_an_error_event(client: Client) -> None:
    client.world.server.before_send = break_after(3)
    url, headers = client.world.gateway.url + PATH, client.world.headers(client.attempt)
    read = bytearray()

    async def ask() -> None:
        body = {"model": "m", "input": "long enough", "stream": True}
        async with client.world.session.post(url, json=body, headers=headers) as answer:
            async for chunk in answer.content.iter_any():
                read.extend(chunk)

    with pytest.raises(aiohttp.ClientPayloadError):
        await ask()
    last = events(bytes(read))[-1]
    assert last["type"] == "error"
    assert last["error"]["code"] == last["code"] == "engine_error"
    (call,) = await recorded(client)
    assert not call.complete


async def test_a_stream_without_a_finish_reason_is_no_answer(client: Client) -> None:
    def tamper(chunk: dict[str, Any]) -> None:
        for row in chunk["choices"]:
            row["finish_reason"] = None

    client.world.server.tamper = tamper
    told = await client.stream()
    assert told[-1]["type"] == "error"
    assert "finish reason" in told[-1]["message"]
    (call,) = await recorded(client)
    assert (call.complete, call.error) == (
        False,
        "the backend's stream ended without a finish reason",
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["error", "abandoned"])
async def test_an_answer_that_was_given_up_is_not_completed(
    client: Client, reason: str, stream: bool
) -> None:
    """B4: an unknown finish reason is an error for a Responses client."""

    def tamper(payload: dict[str, Any]) -> None:
        for row in payload["choices"]:
            if row.get("finish_reason"):
                row["finish_reason"] = reason

    client.world.server.tamper = tamper
    if stream:
        told = await client.stream()
        assert "response.completed" not in [event["type"] for event in told]
        error = told[-1]
    else:
        status, body = await client.post()
        assert status == 502
        error = body["error"]
    assert f"finish reason '{reason}'" in error["message"]
    (call,) = await recorded(client)
    assert not call.complete
    assert reason in call.error


@pytest.mark.parametrize(
    "nonsense",
    [{"choices": []}, {"choices": None}, {"error": {"message": "no"}}, {"choices": "text"}],
    ids=str,
)
async def test_a_whole_answer_that_is_none_is_the_backends_fault(
    client: Client, nonsense: dict[str, Any]
) -> None:
    client.world.server.tamper = lambda body: body.update(nonsense)
    status, answer = await client.post()
    assert (status, answer["error"]["code"]) == (502, "engine_error")
    (call,) = await recorded(client)
    assert call.error or not call.complete


@pytest.mark.parametrize(
    "nonsense",
    [{"choices": 3}, {"choices": [{"delta": "text"}]}, {"error": "no"}, {"error": {"code": 7}}],
    ids=str,
)
async def test_a_chunk_that_is_none_ends_the_stream_in_an_error(
    client: Client, nonsense: dict[str, Any]
) -> None:
    client.world.server.tamper = lambda body: body.update(nonsense)
    told = await client.stream()
    assert told[-1]["type"] == "error"
    assert told[-1]["error"]["message"]
    (call,) = await recorded(client)
    assert call.error


async def test_the_events_are_the_same_however_bytes_are_cut(client: Client) -> None:
    client.world.server.script = lambda body: EVERYTHING
    client.world.server.cut = lambda data: (data[i : i + 1] for i in range(len(data)))
    told = await client.stream(tools=[TOOL])
    assert told[-1]["type"] == "response.completed"
    assert json.loads(heard(told)[3]["arguments"]) == {"x": "你"}


async def test_a_refusal_and_calls_without_ids_are_passed_on(client: Client) -> None:
    def tamper(body: dict[str, Any]) -> None:
        for row in body["choices"]:
            message = row.get("message") or row["delta"]
            for call in message.get("tool_calls", ()):
                call.pop("id", None)
            if "message" in row:
                message["refusal"] = "no"

    client.world.server.script = lambda body: EVERYTHING
    client.world.server.tamper = tamper
    answer = await client.ask(tools=[TOOL])
    ids = {item["call_id"] for item in answer["output"] if item["type"] == "function_call"}
    assert len(ids) == 2
    assert all(ids)
    parts = [part for item in answer["output"] for part in item.get("content", ())]
    assert {"type": "refusal", "refusal": "no"} in parts
    await client.stream(tools=[TOOL])


async def test_other_paths_below_it_say_what_is_served(client: Client) -> None:
    url = f"{client.world.gateway.url}{PATH}/resp_1"
    headers = client.world.headers(client.attempt)
    async with client.world.session.get(url, headers=headers) as answer:
        assert answer.status == 404
        assert "/responses" in (await answer.json())["error"]["message"]


async def test_an_attempt_that_ends_during_a_stream_says_so(client: Client) -> None:
    heard_first, never = asyncio.Event(), asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        if position == 3:
            await never.wait()

    client.world.server.before_send = before_send
    url, headers = client.world.gateway.url + PATH, client.world.headers(client.attempt)
    read = bytearray()

    async def ask() -> None:
        body = {"model": "m", "input": "long enough", "stream": True}
        async with client.world.session.post(url, json=body, headers=headers) as answer:
            async for chunk in answer.content.iter_any():
                read.extend(chunk)
                heard_first.set()

    asking = asyncio.create_task(ask())
    await heard_first.wait()
    (call,) = await recorded(client)
    with pytest.raises(aiohttp.ClientPayloadError):
        await asking
    assert not call.complete
    last = events(bytes(read))[-1]
    assert (last["type"], last["code"]) == ("error", "attempt_sealed")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retried_attempt_hears_the_same_response(world: Any, stream: bool) -> None:
    world.server.script = lambda body: EVERYTHING
    limits = Limits(timeout_s=600.0, lease_s=600.0, max_attempts=2, retry_on=(FailureKind.LOST,))
    first = await world.attempt(metadata={"resume": "replay"}, limits=limits)
    before = await Client(world, first).ask(tools=[TOOL])
    await world.gateway.seal(first.id)
    lost = Failure(kind=FailureKind.LOST, message="killed")
    await world.store.finish(first.id, status=AttemptStatus.LOST, failure=lost)
    (claim,) = await world.store.claim("w", timeout_s=100)
    await world.gateway.open(claim.rollout, claim.attempt)
    second = Client(world, claim.attempt)
    told = await second.stream(tools=[TOOL]) if stream else await second.ask(tools=[TOOL])
    after = told[-1]["response"] if isinstance(told, list) else told
    assert (after["id"], after["output"]) == (before["id"], before["output"])
    assert after["usage"] == before["usage"]
    assert len(world.server.log) == 1
