"""Any field of any answer is something else, cut at any byte: what the client gets, what is recorded.

Every case is one call: answered without a 500, recorded exactly once, and sealed.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from agl_endpoints import HttpBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agl_core.gateway._stream import EventParser
from agl_core.store._codec import Codec, encode
from agl_core.text import replaced_json
from agl_core.types import ModelCall, Policy, to_list
from tests.core.gateway.scripted import PATHS, STREAM, USER, Desk, Got, desk

RECORDS = Codec(ModelCall)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = 1_300
"""Of a changed answer; each is eight cases."""
HTTP_EXAMPLES = 100
"""Each is four cases."""

ENTRY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
IDS = {"token_ids": [5, 6, 7], "logprobs": {"content": [ENTRY, ENTRY, ENTRY]}}
USAGE = {
    "prompt_tokens": 2,
    "completion_tokens": 3,
    "total_tokens": 5,
    "completion_tokens_details": {"reasoning_tokens": 1},
}
TEXT = {"role": "assistant", "content": "hé 👋", "reasoning": "so"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "sub", "arguments": "{}"}},
    ],
}
OTHERS = {
    "role": "assistant",
    "content": "",
    "refusal": "no",
    "function_call": {"name": "add", "arguments": "{}"},
    "audio": {"id": "s", "data": "AAAA", "transcript": "hm"},
}
MESSAGES = [TEXT, CALLS, OTHERS]
FINISHES = ["stop", "tool_calls", "function_call"]


def whole(message: dict[str, Any], finish: str) -> dict[str, Any]:
    row = {"index": 0, "message": message, "finish_reason": finish, **IDS}
    envelope = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m"}
    return {**envelope, "choices": [row], "usage": USAGE, "prompt_token_ids": [1, 2]}


def chunks(message: dict[str, Any], finish: str) -> list[dict[str, Any]]:
    base = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = copy.deepcopy(message)
    for index, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = index
    rows = [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        {"index": 0, "delta": delta, "finish_reason": None, **IDS},
        {"index": 0, "delta": {}, "finish_reason": finish},
    ]
    found = [{**base, "choices": [row]} for row in rows]
    found[0]["prompt_token_ids"] = [1, 2]
    return [*found, {**base, "choices": [], "usage": USAGE}]


JUNK: list[Any] = [
    None, True, 0, 1, -1, 7, 1.5, -9999.0, 2**31, 10**30, math.nan, math.inf, -math.inf,
    "", "0", "x", "error", "abort", "stop", "\x00", "\ud83d", "😀", [], [None], [[]], ["x"], [1],
    [{}], {}, {"a": 1}, {"index": 0}, {"name": 7}, {"content": [{"logprob": None}]},
    {"message": "no", "code": 500},
]  # fmt: skip
Path = tuple[str | int, ...]


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Of everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*at, key)
        if isinstance(item, (dict, list)):
            yield from paths(item, (*at, key))


@dataclass(frozen=True)
class Change:
    """One thing that is done to a document."""

    place: int
    kind: str
    junk: Any

    def apply(self, document: Any) -> None:
        places = list(paths(document))
        *way, last = places[self.place % len(places)]
        owner = document
        for step in way:
            owner = owner[step]
        if self.kind == "replace":
            owner[last] = copy.deepcopy(self.junk)
        elif self.kind == "remove":
            del owner[last]
        elif isinstance(owner, list):
            owner.insert(last, copy.deepcopy(owner[last]))
        else:
            owner["extra"] = owner[last]


KINDS = ["replace", "replace", "replace", "remove", "repeat"]
changes = st.builds(
    Change,
    st.integers(0, 200),
    st.sampled_from(KINDS),
    st.sampled_from(JUNK),
)


@dataclass(frozen=True)
class Damage:
    """What is done to the bytes."""

    at: float
    byte: int | None
    """Put in the place of one; None cuts the rest off."""

    def apply(self, data: bytes) -> bytes:
        place = int(self.at * (len(data) - 1))
        if self.byte is None:
            return data[:place]
        return data[:place] + bytes([self.byte]) + data[place + 1 :]


damages = st.none() | st.builds(
    Damage,
    st.floats(0, 1, exclude_max=True),
    st.none() | st.sampled_from(list(b'\xff\x00"{[\\,}9')),
)


def encoded(document: Any) -> bytes:
    """As servers write it: half characters escaped, NaN as Python spells it."""
    return json.dumps(document).encode()


def stream_of(documents: list[Any]) -> bytes:
    datas = [*map(encoded, documents), b"[DONE]"]
    return b"".join(b"data: " + data + b"\n\n" for data in datas)


def pieces(data: bytes, cuts: list[float]) -> list[bytes]:
    edges = sorted({0, *(int(cut * len(data)) for cut in cuts), len(data)})
    return [data[a:b] for a, b in pairwise(edges)]


_NUMBERS = {"NaN": None, "Infinity": None, "-Infinity": None}


def loaded(data: bytes) -> Any:
    """A document; raises ValueError or RecursionError."""
    return json.loads(data.decode("utf-8", "replace"), parse_constant=_NUMBERS.__getitem__)


def strict(data: bytes) -> Any:
    """A document that every parser takes."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(data.decode(), parse_constant=refuse)


def mended(value: Any) -> Any:
    """Without half characters."""
    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", "\ufffd", value)
    if isinstance(value, dict):
        return {mended(key): mended(item) for key, item in value.items()}
    return [mended(item) for item in value] if isinstance(value, list) else value


def seen(data: bytes, *, model: str, hidden: bool) -> Any:
    """What a client sees of one document; the bytes themselves where they are none.

    Args:
        data: What the backend sent.
        model: The name that the client asked for.
        hidden: Without what the client did not ask for; False where all is passed on.
    """
    try:
        document = mended(loaded(data))
    except (ValueError, RecursionError):
        return data
    if not isinstance(document, dict):
        return data
    if not hidden or "choices" not in document:
        return document
    document["model"] = model
    document.pop("prompt_token_ids", None)
    rows = document["choices"]
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            row.pop("token_ids", None)
            if "logprobs" in row:
                row["logprobs"] = None
    return document


def same(got: bytes, expected: Any) -> bool:
    if isinstance(expected, bytes):
        return got == expected
    return strict(got) == expected


def clean(data: bytes) -> bool:
    """Whether every parser takes it as it is."""
    try:
        document = strict(data)
    except (ValueError, RecursionError, AssertionError):
        return False
    return isinstance(document, dict) and mended(document) == document


def check_plain(got: Got, sent: bytes, *, verbatim: bool) -> None:
    if got.status == 502:
        assert b"finish reason 'abort'" in got.body
        return
    assert got.status == 200
    assert got.ended
    assert same(got.body, seen(sent, model="gpt-x", hidden=not verbatim)), (got.body, sent)
    assert got.body == sent or not (verbatim and clean(sent))


def only_usage(document: Any) -> bool:
    """Take usage, which no client here asked for, out of a chunk; whether that was all."""
    if not isinstance(document, dict) or "choices" not in document:
        return False
    error = document.get("error") or document.get("object") == "error"
    silent = document["choices"] in ([], None) and not error
    return document.pop("usage", None) is not None and silent


def check_stream(got: Got, sent: bytes, *, verbatim: bool) -> None:
    """The events are those that were sent, in order, as far as they go."""
    assert got.status == 200
    events = got.events
    if not got.ended:
        last = json.loads(events.pop())
        assert last["error"]["code"] == "engine_error"
    if replaced_json(sent) != sent:
        return  # halves move to the next delta: test_awkward compares their texts
    parser = EventParser()
    for data in [event.data for event in (*parser.feed(sent), *parser.finish())]:
        if data == b"[DONE]":
            expected: Any = data
        else:
            expected = seen(data, model="gpt-x", hidden=not verbatim)
            if not verbatim and only_usage(expected):
                continue
        if not events:
            assert not got.ended
            return
        assert same(events.pop(0), expected), (data, expected)
    assert not events or got.ended


def runs_through(part: str, whole: str) -> bool:
    """Whether the characters of `part` occur in `whole`, in their order."""
    characters = iter(whole)
    return all(character in characters for character in part)


def check_responses(got: Got, call: ModelCall, *, stream: bool) -> None:
    """The client has what is recorded, or an error."""
    if not stream:
        assert got.status in (200, 502)
        response = json.loads(got.body)
        ended = got.status == 200
    else:
        assert got.status == 200
        told = [json.loads(event) for event in got.events]
        assert told
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        ended = told[-1]["type"] in ("response.completed", "response.incomplete")
        assert ended or told[-1]["type"] == "error"
        response = told[-1].get("response", {})
    if not ended:
        assert call.error or not call.complete
        return
    assert call.complete
    choice = call.choices[0]
    items = response["output"]
    texts = [part.get("text", "") for item in items if item["type"] == "message"
             for part in item["content"]]  # fmt: skip
    spoken = "" if choice.audio == "[audio]" else choice.audio
    if choice.text and spoken:  # in the order in which their parts came
        told = "".join(texts)
        assert len(told) == len(choice.text) + len(spoken)
        assert runs_through(choice.text, told)
        assert runs_through(spoken, told)
    else:
        assert "".join(texts) == choice.text + spoken
    made = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    known = [tuple(each["function"].values()) for each in choice.tool_calls]
    older = [tuple(choice.function_call.values())] if choice.function_call else []
    assert sorted(made) == sorted([*known, *older])


@dataclass(frozen=True)
class Case:
    """A changed answer."""

    message: int
    changes: list[Change]
    damage: Damage | None
    cuts: list[float]
    verbatim: bool
    """The client asks by the backend's name of the model, and for all that there is."""

    def plain(self) -> bytes:
        document = copy.deepcopy(whole(MESSAGES[self.message], FINISHES[self.message]))
        for change in self.changes:
            change.apply(document)
        return self.damaged(encoded(document))

    def streamed(self) -> bytes:
        documents = copy.deepcopy(chunks(MESSAGES[self.message], FINISHES[self.message]))
        for change in self.changes:
            change.apply(documents[change.place % len(documents)])
        return self.damaged(stream_of(documents))

    def damaged(self, data: bytes) -> bytes:
        return data if self.damage is None else self.damage.apply(data)


cases = st.builds(
    Case,
    st.integers(0, len(MESSAGES) - 1),
    st.lists(changes, min_size=1, max_size=2),
    damages,
    st.lists(st.floats(0, 1), max_size=4),
    st.booleans(),
)


AS_IT_IS: dict[str, Any] = {
    "model": "weights-1",
    "return_token_ids": True,
    "logprobs": True,
    "stream_options": {"include_usage": True},
}
"""With it the answer goes to the client byte by byte."""


async def run(at: Desk, case: Case) -> int:
    """Ask in every form; the number of calls."""
    attempt = await at.attempt()
    got: list[tuple[Got, str, bool, str, bytes]] = []
    for stream in (False, True):
        sent = case.streamed() if stream else case.plain()
        for dialect in ("chat", "responses"):
            for agent in ("writer", "judge"):
                await at.answer(*pieces(sent, case.cuts), kind=STREAM if stream else "")
                asks = AS_IT_IS if case.verbatim and dialect == "chat" else {}
                heard = await at.ask(attempt, dialect, agent=agent, stream=stream, **asks)
                got.append((heard, dialect, stream, agent, sent))
    calls = await at.calls(attempt)
    assert [call.agent for call in calls] == [agent for _, _, _, agent, _ in got]
    for call, (heard, dialect, stream, _, sent) in zip(calls, got, strict=True):
        assert RECORDS.decode(encode(call)) == call
        assert json.loads(msgspec.json.encode(call, enc_hook=to_list))
        assert call.complete or call.error
        if dialect == "responses":
            check_responses(heard, call, stream=stream)
        elif stream:
            check_stream(heard, sent, verbatim=case.verbatim)
        else:
            check_plain(heard, sent, verbatim=case.verbatim)
    return len(calls)


def test_any_answer_is_passed_on_and_recorded_once(record_property: Any) -> None:
    """A1, A2, A4: no field of an answer and no cut of its bytes costs an answer, a record or a seal."""
    counted = 0
    loop = asyncio.new_event_loop()
    entered = desk()
    at = loop.run_until_complete(entered.__aenter__())

    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(cases)
    def check(case: Case) -> None:
        nonlocal counted
        counted += loop.run_until_complete(run(at, case))

    try:
        check()
    finally:
        loop.run_until_complete(entered.__aexit__(None, None, None))
        loop.close()
    record_property("cases", counted)
    assert counted >= 10_000


class RawServer:
    """Answers each request with the next bytes, and closes, whatever the length that it stated."""

    def __init__(self) -> None:
        self.sent, self.kind, self.stated = b"", "", 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        kind = self.kind or "application/json"
        headers = f"content-type: {kind}\r\ncontent-length: {self.stated}\r\n"
        writer.write(f"HTTP/1.1 200 OK\r\n{headers}connection: close\r\n\r\n".encode() + self.sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def drawn(random: Random) -> Case:
    change = Change(random.randrange(200), random.choice(KINDS), random.choice(JUNK))
    damage = Damage(random.random(), random.choice([None, None, 255, 0, 34, 123]))
    return Case(random.randrange(len(MESSAGES)), [change], random.choice([None, damage]), [], False)


async def test_any_answer_over_http(record_property: Any) -> None:
    """A1, A2: the same through sockets, also where the backend closes before the end it stated."""
    random, raw, counted = Random(7), RawServer(), 0
    async with AsyncExitStack() as stack:
        listening = await stack.enter_async_context(await asyncio.start_server(raw, "127.0.0.1", 0))
        port = listening.sockets[0].getsockname()[1]
        backend = HttpBackend(f"http://127.0.0.1:{port}/v1", model="weights-1")
        stack.push_async_callback(backend.close)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        at = await stack.enter_async_context(desk())
        await at.gateway.route(Policy(name="trained", agents=("*",), trainable=True), backend)
        await at.gateway.start()
        stack.push_async_callback(at.gateway.stop)
        for _ in range(HTTP_EXAMPLES):
            case, attempt = drawn(random), await at.attempt()
            forms = [(dialect, stream) for dialect in PATHS for stream in (False, True)]
            for dialect, stream in forms:
                raw.sent = case.streamed() if stream else case.plain()
                raw.kind, raw.stated = (
                    STREAM if stream else "",
                    len(raw.sent) + random.choice([0, 9]),
                )
                url, body = (
                    f"{at.gateway.url}{PATHS[dialect]}",
                    {"model": "gpt-x", "stream": stream},
                )
                body |= {"input": "hi"} if dialect == "responses" else {"messages": [USER]}
                async with session.post(url, json=body, headers=at.headers(attempt)) as answer:
                    assert answer.status in (200, 502)
                    with suppress(aiohttp.ClientPayloadError):
                        await answer.read()
            counted += len(forms)
            calls = await at.calls(attempt)
            assert len(calls) == len({call.id for call in calls}) == len(forms)
            assert all(call.complete or call.error for call in calls)
    record_property("cases", counted)
