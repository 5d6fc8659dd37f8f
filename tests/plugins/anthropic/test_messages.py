"""Anthropic's own clients get Messages, and their calls are recorded as chat completions."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from agl_anthropic._answer import MessageBuilder
from agl_anthropic._conversation import INVALID_JSON
from agl_anthropic._request import read
from agl_testing.fake_openai import FakeOptions, FakeReply
from hypothesis import given
from hypothesis import strategies as st

from agl_core.gateway import AnswerReader, Payload
from agl_core.interfaces import Problem

ASKED: dict[str, Any] = {
    "model": "claude-x",
    "max_tokens": 1024,
    "messages": [{"role": "user", "content": "héllo 👋"}],
}
TOOL = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"x": {}}},
}
EVERYTHING = FakeReply(
    reasoning="let me think",
    text="I add",
    tool_calls=[
        {"name": "add", "arguments": {"x": 1}},
        {"name": "add", "arguments": {"x": "你"}},
    ],
)


def chat(**body: Any) -> dict[str, Any]:
    """The chat completion that a request becomes."""
    return json.loads(read(json.dumps({**ASKED, **body}).encode())[0])


def messages(*given: Any) -> list[dict[str, Any]]:
    return chat(messages=list(given))["messages"]


def shape(content: Any) -> list[dict[str, Any]]:
    """Blocks without the ids, which each answer has its own."""
    rows = [block if isinstance(block, dict) else block.model_dump() for block in content]
    return [{k: v for k, v in row.items() if k != "id" and v not in (None, "", [])} for row in rows]


async def test_text_is_answered_and_its_tokens_are_recorded(world: Any, client: Any) -> None:
    answer = await client.messages.create(
        **ASKED, system="Be brief", extra_body={"temperature": 0.5}
    )
    (logged,) = world.server.log
    assert [block.text for block in answer.content] == [logged.choices[0].text]
    assert (answer.id, answer.model, answer.stop_reason) == (logged.id, "claude-x", "end_turn")
    assert answer.usage.input_tokens == len(logged.prompt_token_ids)
    assert answer.usage.output_tokens == len(logged.choices[0].token_ids)
    (call,) = await world.calls(client.attempt)
    assert call.messages == logged.body["messages"]
    assert [message["role"] for message in call.messages] == ["system", "user"]
    assert call.prompt_token_ids.tolist() == logged.prompt_token_ids
    assert call.choices[0].token_ids.tolist() == logged.choices[0].token_ids
    assert call.choices[0].logprobs.tolist() == logged.choices[0].logprobs
    assert (call.response_id, call.complete, call.sampling.temperature) == (logged.id, True, 0.5)


async def test_a_stream_says_what_a_whole_answer_says(world: Any, client: Any) -> None:
    world.server.script = lambda body: EVERYTHING
    whole = await client.messages.create(**ASKED, tools=[TOOL])
    async with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert shape(final.content) == shape(whole.content)
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in final.content[2:]] == [{"x": 1}, {"x": "你"}]
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage.input_tokens == len(world.server.log[-1].prompt_token_ids)
    assert final.usage.output_tokens == len(world.server.log[-1].choices[0].token_ids)
    for call, logged in zip(await world.calls(client.attempt), world.server.log, strict=True):
        assert call.complete
        assert call.choices[0].reasoning == "let me think"
        assert call.choices[0].token_ids.tolist() == logged.choices[0].token_ids


async def test_a_conversation_goes_on_with_what_was_answered(world: Any, client: Any) -> None:
    world.server.script = lambda body: EVERYTHING
    first = await client.messages.create(**ASKED, tools=[TOOL])
    said = [block.model_dump(exclude_none=True) for block in first.content]
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "2"}
        for block in first.content
        if block.type == "tool_use"
    ]
    results.append({"type": "text", "text": "Go on"})
    await client.messages.create(
        **{
            **ASKED,
            "messages": [
                *ASKED["messages"],
                {"role": "assistant", "content": said},
                {"role": "user", "content": results},
            ],
        },
        tools=[TOOL],
    )
    turn, one, two, user = world.server.log[-1].body["messages"][1:]
    assert (turn["content"], turn["reasoning_content"]) == ("I add", "let me think")
    assert [call["function"] for call in turn["tool_calls"]] == [
        {"name": "add", "arguments": '{"x": 1}'},
        {"name": "add", "arguments": '{"x": "你"}'},
    ]
    ids = [call["id"] for call in turn["tool_calls"]]
    assert [(each["role"], each["tool_call_id"]) for each in (one, two)] == [
        ("tool", ids[0]),
        ("tool", ids[1]),
    ]
    assert user == {"role": "user", "content": "Go on"}


async def test_tokens_are_counted_before_they_are_spent(make_world: Any) -> None:
    world = await make_world(FakeOptions(tokenize=True, stable=True))
    attempt = await world.attempt()
    headers = world.headers(attempt)
    async with anthropic.AsyncAnthropic(
        base_url=world.gateway.url, api_key="any", default_headers=headers, max_retries=0
    ) as client:
        given = {name: ASKED[name] for name in ("model", "messages")}
        counted = await client.messages.count_tokens(**given, system="Be brief")
        await client.messages.create(**ASKED, system="Be brief")
    (logged,) = [each for each in world.server.log if each.choices]
    assert counted.input_tokens == len(logged.prompt_token_ids)
    assert len(await world.calls(attempt)) == 1


async def test_another_attempts_key_is_refused(world: Any, client: Any) -> None:
    other = client.with_options(api_key="agl-another")
    with pytest.raises(anthropic.AuthenticationError):
        await other.messages.create(**ASKED)
    assert world.server.log == []


async def test_the_key_is_not_passed_on(world: Any, client: Any) -> None:
    await client.messages.create(**ASKED)
    assert "x-api-key" not in {name.lower() for name in world.server.log[0].headers}


async def test_what_cannot_be_served_is_an_error_with_its_field(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
        await client.messages.create(**ASKED, extra_body={"mcp_servers": [{"name": "x"}]})


@pytest.mark.parametrize("status", [429, 500])
async def test_an_error_of_the_backend_has_its_status(world: Any, client: Any, status: int) -> None:
    world.server.script = lambda body: FakeReply(status=status)
    with pytest.raises(anthropic.APIStatusError) as caught:
        await client.messages.create(**ASKED)
    assert caught.value.status_code >= 400


def test_every_field_has_its_counterpart() -> None:
    made = chat(
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "brief"}],
        stop_sequences=["END"],
        top_p=0.5,
        tools=[{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
        metadata={"user_id": "u"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {}}},
    )
    assert made == {
        "model": "claude-x",
        "max_completion_tokens": 1024,
        "messages": [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "héllo 👋"},
        ],
        "stop": ["END"],
        "top_p": 0.5,
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Adds.",
                    "parameters": TOOL["input_schema"],
                },
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {}},
        },
    }
    named = chat(tools=[TOOL], tool_choice={"type": "tool", "name": "add"})
    assert named["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert chat(stream=True)["stream_options"] == {"include_usage": True}


def test_images_and_documents_of_text_are_parts() -> None:
    image = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    (user,) = messages(
        {
            "role": "user",
            "content": [
                {"type": "image", "source": image},
                {"type": "image", "source": {"type": "url", "url": "https://h/i.png"}},
                {"type": "document", "source": {"type": "text", "data": "A law"}},
            ],
        }
    )
    assert user["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "https://h/i.png"}},
        {"type": "text", "text": "A law"},
    ]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "source.type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": [1]}}, "context_management"),
    ],
)
def test_a_request_that_cannot_be_served_names_its_field(body: Any, named: str) -> None:
    with pytest.raises(Problem) as caught:
        chat(**body)
    assert caught.value.status == 400
    assert named in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem, match="no Messages request"):
        read(body)


def answered(*chunks: dict[str, Any], whole: bool = False) -> tuple[MessageBuilder, list[Any]]:
    """The builder and its events, after the chunks of an answer."""
    reader, builder, data = AnswerReader(), MessageBuilder("m"), b""
    for chunk in chunks:
        for delta in reader.read(Payload(json.dumps(chunk).encode()), whole=whole):
            data += builder.add(delta)
    data += builder.end()
    return builder, [json.loads(row[6:]) for row in data.decode().split("\n") if row[:5] == "data:"]


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("finish", "stopped"),
    [("stop", "end_turn"), ("length", "max_tokens"), ("content_filter", "refusal")],
)
def test_why_an_answer_stopped(finish: str, stopped: str) -> None:
    builder, events = answered(chunk(content="hi"), chunk(finish))
    assert builder.message["stop_reason"] == stopped
    assert events[-2]["delta"]["stop_reason"] == stopped


def test_an_input_that_is_no_object_is_kept_whole_and_sent_back_as_it_was() -> None:
    call = {"index": 0, "id": "t", "function": {"name": "add", "arguments": '{"x": 1'}}
    builder, _ = answered(chunk("tool_calls", tool_calls=[call]))
    (block,) = builder.message["content"]
    assert block["input"] == {INVALID_JSON: '{"x": 1'}
    (turn,) = messages({"role": "assistant", "content": [block]})
    assert turn["tool_calls"][0]["function"]["arguments"] == '{"x": 1'


texts = st.text(max_size=8)
deltas = st.one_of(
    st.builds(lambda text: {"content": text}, texts),
    st.builds(lambda text: {"reasoning_content": text}, texts),
    st.builds(
        lambda index, text: {
            "tool_calls": [{"index": index, "id": f"t{index}", "function": {"arguments": text}}]
        },
        st.integers(0, 2),
        texts,
    ),
    st.builds(
        lambda index: {
            "tool_calls": [{"index": index, "id": f"t{index}", "function": {"name": f"f{index}"}}]
        },
        st.integers(0, 2),
    ),
)


@given(st.lists(deltas, max_size=8))
def test_events_amount_to_the_message(given_deltas: list[dict[str, Any]]) -> None:
    """Whatever the order of its pieces, a client that follows the events has the whole answer."""
    builder, events = answered(*(chunk(**delta) for delta in given_deltas), chunk("stop"))
    blocks: list[dict[str, Any]] = []
    pieces: dict[int, list[str]] = {}
    closed: set[int] = set()
    for event in events[1:-2]:
        index = event["index"]
        assert index not in closed
        if event["type"] == "content_block_start":
            assert index == len(blocks)
            blocks.append(event["content_block"])
            pieces[index] = []
        elif event["type"] == "content_block_delta":
            (text,) = [value for name, value in event["delta"].items() if name != "type"]
            pieces[index].append(text)
        else:
            closed.add(index)
    assert closed == set(range(len(blocks)))
    for index, block in enumerate(builder.message["content"]):
        said = "".join(pieces[index])
        if block["type"] == "tool_use":
            assert block["input"] == ({INVALID_JSON: said} if said else {}) or json.loads(said)
        else:
            assert block[block["type"]] == said
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
