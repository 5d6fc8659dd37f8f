"""Tool calls in sampled text, whole and streamed."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from agl_torch.chat._toolcalls import ToolCall, ToolCallParser
from hypothesis import given
from hypothesis import strategies as st

from agl_core.types import Policy

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
TOOL = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}


def parse(pieces):
    parser = ToolCallParser(response_id="r")
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    text = "".join(event for event in events if isinstance(event, str))
    return text, [event for event in events if isinstance(event, ToolCall)]


def calls(text):
    return [(call.name, call.arguments) for call in parse([text])[1]]


fragments = st.lists(
    st.sampled_from(
        [CALL, "<tool_call>", "</tool_call>", "<tool", "_call>", "{", '"', "\\", " ", "\n", "é",
         "text", '{"name": "g", "arguments": {}}', '{"name": 1}', '"</tool_call>"']
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(fragments, st.lists(st.integers(0, 200), max_size=8))
def test_every_cut_gives_the_same(text, cuts):
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert parse(pieces) == parse([text]) == parse(list(text))


@given(fragments)
def test_without_a_call_every_letter_stays(text):
    content, found = parse([text])
    if not found:
        assert content == text


def test_a_call_between_texts():
    content, found = parse([f"Let me see. \n{CALL}\n\n done"])
    assert content == "Let me see.done"
    assert [(call.index, call.name, call.arguments) for call in found] == [(0, "f", '{"x": "é"}')]


def test_several_calls_have_ids_of_their_own():
    content, found = parse([CALL + "\n" + CALL])
    assert content == ""
    assert [call.index for call in found] == [0, 1]
    assert found[0].id != found[1].id
    assert found == parse(list(CALL + "\n" + CALL))[1]


def test_ids_follow_from_the_response():
    first = ToolCallParser(response_id="r").feed(CALL)
    assert first == ToolCallParser(response_id="r").feed(CALL)
    assert first != ToolCallParser(response_id="s").feed(CALL)


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", '{"name": "f", "arguments": "x"}', '{"arguments": {}}', "{'name': 'f'}"],
)
def test_what_is_no_call_stays_text_letter_for_letter(body):
    text = f"a <tool_call>{body}</tool_call> b"
    assert parse([text]) == (text, [])


def test_a_closing_marker_within_a_string_does_not_close():
    text = '<tool_call>{"name": "f", "arguments": {"x": "a</tool_call>\\"b"}}</tool_call>'
    assert calls(text) == [("f", json.dumps({"x": 'a</tool_call>"b'}))]


def test_a_whole_call_counts_without_its_closing_marker():
    assert calls('<tool_call>{"name": "f", "arguments": {}}') == [("f", "{}")]
    assert parse(['<tool_call>{"name": "f"']) == ('<tool_call>{"name": "f"', [])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_calls_a_tool(tool_model, run_engine, client, recompute, stream):
    async with run_engine([Policy(name="p", model=tool_model)]) as engine:
        reply = await client(engine, "p").ask(
            "price?", tools=[TOOL], max_tokens=100, seed=0, stream=stream, temperature=0.9
        )
    answer = reply.answers[0]
    assert answer.finish == "tool_calls"
    assert not answer.content
    call = answer.tool_calls[0]
    assert call["function"] == {"name": "lookup", "arguments": '{"item": "red lamp"}'}
    assert answer.tokens[-1] == 258  # the end of the turn
    expected = recompute(tool_model, reply.prompt, answer.tokens, temperature=0.9)
    assert answer.logprobs == pytest.approx(expected, abs=2e-5)


async def test_the_next_prompt_goes_on_from_the_sampled_tokens(tool_model, run_engine, client):
    async with run_engine([Policy(name="p", model=tool_model)]) as engine:
        asker = client(engine, "p")
        first = await asker.ask("price?", tools=[TOOL], max_tokens=100, temperature=0)
        message = first.document["choices"][0]["message"]
        second = await asker.ask(
            messages=[
                {"role": "user", "content": "price?"},
                message,
                {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "5"},
            ],
            tools=[TOOL],
            max_tokens=1,
        )
    path = [*first.prompt, *first.answers[0].tokens]
    assert second.prompt[: len(path)] == path


async def test_without_tools_the_same_text_is_text(tool_model, run_engine, client):
    async with run_engine([Policy(name="p", model=tool_model)]) as engine:
        asker = client(engine, "p")
        plain = await asker.ask("price?", max_tokens=100, temperature=0)
        off = await asker.ask(
            "price?", tools=[TOOL], tool_choice="none", max_tokens=100, temperature=0
        )
    assert plain.answers[0].tool_calls == off.answers[0].tool_calls == []
    assert plain.prompt == off.prompt
    assert plain.answers[0].finish in ("stop", "length")


async def test_one_call_only_ends_at_the_first(tool_model, run_engine, client):
    async with run_engine([Policy(name="p", model=tool_model)]) as engine:
        reply = await client(engine, "p").ask(
            "price?", tools=[TOOL], parallel_tool_calls=False, max_tokens=100, temperature=0
        )
    answer = reply.answers[0]
    assert len(answer.tool_calls) == 1
    assert answer.tokens[-1] != 258
    assert answer.finish == "tool_calls"
