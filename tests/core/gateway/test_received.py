"""The record is what the client received: calls, refusals, characters, errors and ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agl_records._conversations import answer_message
from hypothesis import given
from hypothesis import strategies as st

from agl_core.gateway._replay import RecordBackend, RecordedCall
from agl_core.gateway._tool_calls import CallPart, FunctionPart, ToolCalls
from tests.core.gateway.scripted import DONE, STREAM, Desk, chunk, desk, plain

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
NAMES = [("a", "add", '{"x": 1}'), ("b", "sub", '{"x": 2}'), ("c", "add", "{}")]
MISSING = object()


@pytest.fixture
async def at() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made


def part(call_id: str | None, name: str | None, arguments: str, index: Any) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name is not None else {})
    made: dict[str, Any] = {"type": "function", "function": function}
    made |= {"id": call_id} if call_id is not None else {}
    return made if index is MISSING else {**made, "index": index}


def known(call: Any) -> list[tuple[str, str, str]]:
    made = call.choices[0].tool_calls
    return [(m["id"], m["function"]["name"], m["function"]["arguments"]) for m in made]


def fragments(*, index: Any, repeat: bool, halves: bool) -> list[dict[str, Any]]:
    """The three calls, each whole or in two halves that bear its id."""
    found: list[dict[str, Any]] = []
    for place, (call_id, name, arguments) in enumerate(NAMES):
        at = place if index == "own" else index
        cut = len(arguments) // 2 if halves else len(arguments)
        found.append(part(call_id, name, arguments[:cut], at))
        if halves:
            found.append(part(call_id, name if repeat else None, arguments[cut:], at))
    return found


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("together", [False, True], ids=["chunk_each", "one_chunk"])
@pytest.mark.parametrize("repeat", [False, True], ids=["name_once", "name_repeated"])
@pytest.mark.parametrize("halves", [False, True], ids=["whole", "halves"])
@pytest.mark.parametrize("index", [0, None, MISSING, "own"], ids=["0", "null", "missing", "own"])
async def test_parallel_calls_are_three(
    at: Desk, index: Any, halves: bool, repeat: bool, together: bool, dialect: str
) -> None:
    """B1: three ids under one index, or none, are three calls in order, in record and response."""
    parts = fragments(index=index, repeat=repeat, halves=halves)
    deltas = [parts] if together else [[each] for each in parts]
    chunks = [chunk({"tool_calls": each}) for each in deltas]
    await at.answer(*chunks, chunk({}, "tool_calls"), DONE, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, dialect, stream=True)
    (call,) = await at.calls(attempt)
    assert (call.complete, call.error) == (True, "")
    assert known(call) == NAMES
    if dialect == "responses":
        output = json.loads(got.events[-1])["response"]["output"]
        assert [(o["call_id"], o["name"], o["arguments"]) for o in output] == NAMES


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("ids", [("a", "b", "c"), ("a", "a", "a"), ("", "", "")])
async def test_a_plain_answers_calls_go_by_position(
    at: Desk, ids: tuple[str, ...], dialect: str
) -> None:
    """B1: whatever index and id they have, each entry of a message is one call."""
    calls = [
        part(one, name, arguments, 0) for one, (_, name, arguments) in zip(ids, NAMES, strict=True)
    ]
    await at.answer(plain({"content": None, "tool_calls": calls}))
    attempt = await at.attempt()
    got = await at.ask(attempt, dialect)
    (call,) = await at.calls(attempt)
    assert [row[1:] for row in known(call)] == [row[1:] for row in NAMES]
    assert [row[0] for row in known(call)] == list(ids)
    if dialect == "responses":
        output = json.loads(got.body)["output"]
        assert [(o["name"], o["arguments"]) for o in output] == [row[1:] for row in NAMES]


@given(st.data())
def test_interleaved_fragments_of_calls_with_ids_are_joined(data: st.DataObject) -> None:
    """B1: fragments of several calls by turns, each with its id and any index, are those calls."""
    rest = {call_id: list(arguments) for call_id, _, arguments in NAMES}
    calls = ToolCalls()
    shared = data.draw(st.sampled_from([0, None]))
    for call_id, name, _ in NAMES:
        calls.add([CallPart(index=shared, id=call_id, function=_function(name, ""))], whole=False)
    while rest:
        call_id = data.draw(st.sampled_from(sorted(rest)))
        letter = rest[call_id].pop(0)
        calls.add(
            [CallPart(index=shared, id=call_id, function=_function(None, letter))], whole=False
        )
        rest = {key: letters for key, letters in rest.items() if letters}
    made = [(m["id"], m["function"]["name"], m["function"]["arguments"]) for m in calls.wire()]
    assert made == NAMES


def _function(name: str | None, arguments: str) -> FunctionPart:
    return FunctionPart(name=name, arguments=arguments)


def test_calls_without_id_and_index_go_by_position_name_and_closed_arguments() -> None:
    """B1: what names nothing is read as a reader would."""

    def read(*deltas: list[tuple[str | None, str]]) -> list[tuple[str, str]]:
        calls = ToolCalls()
        for delta in deltas:
            parts = [CallPart(function=_function(name, arguments)) for name, arguments in delta]
            calls.add(parts, whole=False)
        return [(m["function"]["name"], m["function"]["arguments"]) for m in calls.wire()]

    both = [("add", '{"x": 1}'), ("sub", "{}")]
    assert read([both[0]], [both[1]]) == both
    assert read([("add", '{"x"'), ("sub", "{")], [(None, ": 1}"), (None, "}")]) == both
    assert read([("add", '{"x"'), ("sub", "{")], [("add", ": 1}"), ("sub", "}")]) == both
    assert read([("add", '{"x"')], [("add", ": 1}")], [("sub", "{}")]) == both
    assert read([("ad", "")], [("d", "")], [(None, "{}")]) == [("add", "{}")]


@pytest.mark.parametrize("agent", ["writer", "judge"])
@pytest.mark.parametrize("model", ["gpt-x", "weights-1"], ids=["rewritten", "verbatim"])
@pytest.mark.parametrize("field", ["content", "reasoning", "refusal", "arguments"])
async def test_a_character_cut_in_half_is_whole(
    at: Desk, field: str, model: str, agent: str
) -> None:
    """B5: U+1F378 whose halves come in two deltas is one character for client and record."""

    def delta(text: str) -> dict[str, Any]:
        if field != "arguments":
            return {field: text}
        return {"tool_calls": [part("a", None, text, 0)]}

    texts = ["say \ud83c", "\udf78!", "\ud83d", "no half"]
    await at.answer(*(chunk(delta(t)) for t in texts), chunk({}, "stop"), DONE, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, agent=agent, stream=True, model=model)
    rows = [json.loads(event)["choices"][0]["delta"] for event in got.events[:-1]]
    (call,) = await at.calls(attempt)
    choice = call.choices[0]
    if field == "arguments":
        heard = "".join(row["tool_calls"][0]["function"]["arguments"] for row in rows[:-1])
        recorded = choice.tool_calls[0]["function"]["arguments"]
    else:
        heard = "".join(row.get(field) or "" for row in rows)
        recorded = {"content": choice.text, "reasoning": choice.reasoning}.get(
            field, choice.refusal
        )
    assert heard == recorded == "say \U0001f378!\ufffdno half"
    assert (call.complete, call.error) == (True, "")


async def test_a_half_that_stays_alone_ends_as_a_replacement(at: Desk) -> None:
    """B5: the half of a last delta is not lost."""
    await at.answer(chunk({"content": "a\ud83c"}), chunk({}, "stop"), DONE, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, stream=True)
    heard = "".join(
        json.loads(e)["choices"][0]["delta"].get("content", "") for e in got.events[:-1]
    )
    (call,) = await at.calls(attempt)
    assert heard == call.choices[0].text == "a\ufffd"


LAST = [
    ({"delta": {"content": ["x"]}}, "a"),
    ({"delta": {"content": "b"}}, "a\ufffdb"),
    ({"delta": None}, "a\ufffd"),
    ({}, "a\ufffd"),
]


@pytest.mark.parametrize(("row", "text"), LAST, ids=repr)
async def test_a_half_before_an_odd_last_delta(at: Desk, row: dict[str, Any], text: str) -> None:
    """B5, A1: a list of parts, or no delta at all, costs neither answer nor record."""
    last = {"choices": [{"index": 0, **row, "finish_reason": "stop"}]}
    event = b"data: " + json.dumps(last).encode() + b"\n\n"
    await at.answer(chunk({"content": "a\ud83c"}), event, DONE, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, stream=True)
    assert got.ended
    assert got.events[-1] == b"[DONE]"
    (call,) = await at.calls(attempt)
    assert call.complete
    assert call.choices[0].text.startswith(text)


ERRORS = [
    (b'event: error\ndata: {"message": "died", "code": 500}\n\n', "died"),
    (b"event: error\ndata: died\n\n", "died"),
    (b'data: {"object": "error", "message": "died", "code": 500}\n\n', "500: died"),
    (b'data: {"error": {"message": "died", "code": 500}}\n\n', "500: died"),
    (b'data: {"error": "died"}\n\n', "died"),
]


@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize(("event", "words"), ERRORS, ids=lambda value: repr(value)[:30])
async def test_an_error_inside_a_stream_is_recorded(
    at: Desk, event: bytes, words: str, dialect: str
) -> None:
    """B8: an error event of any form is in the record, and the client gets it."""
    await at.answer(chunk({"content": "hi"}), event, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, dialect, stream=True)
    assert b"died" in got.body
    (call,) = await at.calls(attempt)
    assert words in call.error
    assert not call.complete
    if dialect == "responses":
        assert json.loads(got.events[-1])["type"] == "error"


@pytest.mark.parametrize("agent", ["writer", "judge"])
@pytest.mark.parametrize("dialect", ["chat", "responses"])
@pytest.mark.parametrize("end", [b"", DONE], ids=["without_done", "done"])
@pytest.mark.parametrize("model", ["gpt-x", "weights-1"])
async def test_an_end_without_a_finish_reason_is_an_error_for_every_client(
    at: Desk, end: bytes, model: str, dialect: str, agent: str
) -> None:
    """B8: the stream ends in an error event and is cut, for chat and Responses clients alike."""
    await at.answer(chunk({"content": "hi"}), end, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, dialect, agent=agent, stream=True, model=model)
    assert not got.ended
    assert b"[DONE]" not in got.body
    error = json.loads(got.events[-1])["error"]
    assert error["code"] == "engine_error"
    assert "without a finish reason" in error["message"]
    (call,) = await at.calls(attempt)
    assert (call.complete, call.choices[0].text) == (False, "hi")
    assert "without a finish reason" in call.error


@pytest.mark.parametrize("tail", [b"da", b": pi", b"event: erro", b"event: error\n", b"data: {"])
async def test_a_stream_that_is_cut_inside_a_line_ends_in_an_error(at: Desk, tail: bytes) -> None:
    """A2, B8: the client, which gets the bytes as they came, can read the error after them."""
    await at.answer(sent := chunk({"content": "hi"}) + tail, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, agent="judge", stream=True, model="weights-1")
    assert got.status == 200
    assert got.body.startswith(sent)
    assert not got.ended
    assert json.loads(got.events[-1])["error"]["code"] == "engine_error"
    (call,) = await at.calls(attempt)
    assert (call.complete, call.choices[0].text) == (False, "hi")
    assert "without a finish reason" in call.error


@pytest.mark.parametrize("agent", ["writer", "judge"])
async def test_a_response_is_whole_without_done(at: Desk, agent: str) -> None:
    """B8: a stream that closes after its finish reason, as some servers do, is no error."""
    await at.answer(chunk({"content": "hi"}), chunk({}, "stop"), kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, "responses", agent=agent, stream=True)
    assert json.loads(got.events[-1])["type"] == "response.completed"
    (call,) = await at.calls(attempt)
    assert (call.complete, call.error, call.choices[0].text) == (True, "", "hi")


async def test_an_error_that_comes_with_the_usage_is_passed_on(at: Desk) -> None:
    """B8: usage that the client did not ask for is taken out, the error is not."""
    last = {"choices": [], "usage": USAGE, "error": {"message": "died", "code": 500}}
    event = b"data: " + json.dumps(last).encode() + b"\n\n"
    await at.answer(chunk({"content": "hi"}), event, kind=STREAM)
    attempt = await at.attempt()
    got = await at.ask(attempt, stream=True)
    assert json.loads(got.events[-1])["error"]["message"] == "died"
    assert b"usage" not in got.body
    (call,) = await at.calls(attempt)
    assert (call.complete, call.error) == (False, "500: died")


@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_the_status_on_record_is_what_the_client_got(at: Desk, dialect: str) -> None:
    """B4, C4: an answer that the backend gave up is a refused call, not one cut off by its reader."""
    await at.answer(plain({"content": "hi"}, finish_reason="abort"))
    attempt = await at.attempt()
    got = await at.ask(attempt, dialect)
    (call,) = await at.calls(attempt)
    assert got.status == call.status_code == 502
    assert "abort" in call.error


USAGE = {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
LATE = [
    {"choices": [{"index": 1, "delta": {}, "finish_reason": None, "content_filter_results": {}}]},
    {"choices": [], "usage": dict.fromkeys(USAGE, 0)},
    {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": None}], "usage": None},
]


@pytest.mark.parametrize("late", LATE, ids=["filter_row", "zero_usage", "empty_delta"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_what_comes_after_the_end_costs_no_answer(
    at: Desk, late: dict[str, Any], size: int
) -> None:
    """B9: a filter's row after the finish and a usage of zeros, however the bytes are cut."""
    entry = {"token": "a", "logprob": -1.0}
    ids = {"token_ids": [5, 6], "logprobs": {"content": [entry, entry]}}
    first = json.loads(chunk({"content": "hi"}, **ids)[6:]) | {"prompt_token_ids": [1, 2]}
    documents = [first, json.loads(chunk({}, "stop")[6:]), {"choices": [], "usage": USAGE}, late]
    data = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in documents) + DONE
    await at.answer(*(data[k : k + size] for k in range(0, len(data), size)), kind=STREAM)
    attempt = await at.attempt()
    await at.ask(attempt, stream=True)
    (call,) = await at.calls(attempt)
    assert (call.complete, call.error) == (True, "")
    assert [choice.token_ids.tolist() for choice in call.choices] == [[5, 6]]


@BOTH
@pytest.mark.parametrize("value", ["NaN", "-Infinity", "Infinity", "null", "1e999", '"x"'])
@pytest.mark.parametrize("asked", [False, True], ids=["stripped", "asked"])
@pytest.mark.parametrize("agent", ["writer", "judge"])
async def test_a_log_probability_that_is_none(
    at: Desk, agent: str, asked: bool, value: str, stream: bool
) -> None:
    """A4: valid JSON for the client, stripped as asked; the record refuses itself to training."""
    entries = [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": "X"}]
    more = {"token_ids": [5, 6], "logprobs": {"content": entries}}
    data = (
        chunk({"content": "hi"}, "stop", **more) + DONE
        if stream
        else plain({"content": "hi"}, **more)
    )
    await at.answer(data.replace(b'"X"', value.encode()), kind=STREAM if stream else "")
    attempt = await at.attempt()
    wants = {"logprobs": True, "return_token_ids": True} if asked else {}
    got = await at.ask(attempt, agent=agent, stream=stream, **wants)

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    row = json.loads(got.events[0] if stream else got.body, parse_constant=refuse)["choices"][0]
    assert ("token_ids" in row) == asked
    assert bool(row["logprobs"]) == asked
    (call,) = await at.calls(attempt)
    assert call.choices[0].text == "hi"
    assert "malformed answer: choices[0].logprobs.content[1].logprob" in call.error
    assert value.strip('"') in call.error


@BOTH
@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"content": None, "refusal": "I will not"}, {"refusal": "I will not"}),
        (
            {"content": None, "function_call": {"name": "add", "arguments": "{}"}},
            {"function_call": {"name": "add", "arguments": "{}"}},
        ),
        (
            {"content": None, "audio": {"id": "s", "data": "AAAA", "transcript": "hm"}},
            {"audio": "hm"},
        ),
        ({"content": None, "audio": {"id": "s", "data": "AAAA"}}, {"audio": "[audio]"}),
    ],
    ids=["refusal", "function_call", "transcript", "sound"],
)
async def test_no_answer_is_recorded_as_an_empty_one(
    at: Desk, message: dict[str, Any], found: dict[str, Any], stream: bool
) -> None:
    """C13: a refusal, a call in the older form and speech are in record, export and replay."""
    ended = chunk(message, "stop") + DONE
    await at.answer(ended if stream else plain(message), kind=STREAM if stream else "")
    attempt = await at.attempt()
    await at.ask(attempt, stream=stream)
    (call,) = await at.calls(attempt)
    choice = call.choices[0]
    assert (call.complete, call.error, choice.text) == (True, "", "")
    assert {name: getattr(choice, name) for name in found} == found
    exported = answer_message(choice)
    assert (found.items() <= exported.items()) or exported["content"] == found["audio"]
    if "audio" not in found:
        assert (await replayed(call))["choices"][0]["message"].items() >= found.items()


async def replayed(call: Any) -> dict[str, Any]:
    backend = RecordBackend(RecordedCall(call, {}), "m")
    reply = await backend.chat(b'{"stream": false}', headers={}, timeout_s=1.0)
    return json.loads(b"".join([data async for data in reply.body()]))


async def test_fragments_of_an_older_call_are_joined(at: Desk) -> None:
    """C13: also in a Responses client's answer."""
    deltas = [{"name": "add", "arguments": ""}, {"arguments": '{"x"'}, {"arguments": ": 1}"}]
    chunks = [chunk({"function_call": delta}) for delta in deltas]
    for dialect in ("chat", "responses"):
        await at.answer(*chunks, chunk({}, "function_call"), DONE, kind=STREAM)
        attempt = await at.attempt()
        got = await at.ask(attempt, dialect, stream=True)
        (call,) = await at.calls(attempt)
        assert call.choices[0].function_call == {"name": "add", "arguments": '{"x": 1}'}
    (item,) = json.loads(got.events[-1])["response"]["output"]
    assert (item["type"], item["name"], item["arguments"]) == ("function_call", "add", '{"x": 1}')
