"""Whatever a backend answers, the client gets it, the call ends and its record says what was wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agl_prometheus._route import PrometheusRoute

from agl_core import waits
from agl_core.errors import StoreError
from agl_core.types import Losses
from tests.core.gateway.scripted import DONE, STREAM, Desk, chunk, desk, plain

BOTH = pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
TOKENS = {
    "token_ids": [5, 6],
    "logprobs": {"content": [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]},
}


@pytest.fixture
async def at() -> AsyncIterator[Desk]:
    async with desk() as made:
        yield made


def made(call_id: str, name: str = "add", arguments: str = "{}", **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **more}


async def asked(at: Desk, message: dict[str, Any], *, stream: bool, **more: Any) -> Any:
    """The bytes that a client gets for a message, and the record of the call."""
    attempt = await at.attempt()
    if stream:
        events = [chunk(message, **more), chunk({}, "stop"), DONE]
        await at.answer(*events, kind=STREAM)
    else:
        await at.answer(plain(message, **more))
    got = await at.ask(attempt, stream=stream)
    (call,) = await at.calls(attempt)
    assert got.status == 200
    return got, call


@BOTH
@pytest.mark.parametrize("index", [None, "0", [], {}, 1.5, True, 10**30], ids=repr)
async def test_an_odd_index_of_a_tool_call_ends_in_a_record(
    at: Desk, stream: bool, index: Any
) -> None:
    """A1: calls with index 0 and null (or "0" and 1) are answered, recorded, and seal returns."""
    calls = [made("call_a", index=0), made("call_b", index=index)]
    got, call = await asked(at, {"tool_calls": calls}, stream=stream)
    assert b"call_a" in got.body
    assert b"call_b" in got.body
    assert [one["id"] for one in call.choices[0].tool_calls] == ["call_a", "call_b"]
    assert ("malformed" in call.error) == (not isinstance(index, int | None) or index is True)
    assert "index" in call.error or not call.error


@BOTH
@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": "8"}, {"prompt_tokens": {}}, "8", [8]], ids=repr
)
async def test_usage_that_is_no_number_is_left_out(at: Desk, stream: bool, usage: Any) -> None:
    """A1: usage of another type is named by the record, and the metrics count without it."""
    attempt = await at.attempt()
    document = json.loads(plain({"content": "hi"})) | {"usage": usage}
    if stream:
        last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        await at.answer(chunk({"content": "hi"}, "stop"), last, DONE, kind=STREAM)
    else:
        await at.answer(json.dumps(document).encode())
    got = await at.ask(attempt, stream=stream)
    assert b"hi" in got.body
    assert got.ended
    (call,) = await at.calls(attempt)
    assert call.choices[0].text == "hi"
    assert "malformed answer: usage" in call.error
    route = PrometheusRoute(at.store, Losses())
    for span in await at.store.spans([attempt.rollout_id]):
        route.recorded(span)
    (row,) = route._rows.values()
    assert row.requests == {200: 1}


@BOTH
@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"tool_calls": [{"id": "a", "function": "no"}]}, "tool_calls[0].function"),
        ({"tool_calls": [made("a", name=7)]}, "function.name"),  # type: ignore[arg-type]
        ({"tool_calls": "no"}, "tool_calls"),
        ({"tool_calls": [7]}, "tool_calls[0]"),
        ({"content": 7}, "content"),
        ({"content": {"a": 1}}, "content"),
        ({"refusal": ["no"]}, "refusal"),
        ({"function_call": "no"}, "function_call"),
    ],
    ids=repr,
)
async def test_a_field_of_another_type_is_passed_on_and_named(
    at: Desk, stream: bool, message: dict[str, Any], words: str
) -> None:
    """A2: the answer is passed on; the record names the field and the value."""
    got, call = await asked(at, message, stream=stream, **TOKENS)
    sent = json.loads(got.events[0] if stream else got.body)["choices"][0]
    assert message.items() <= sent["delta" if stream else "message"].items()
    assert "token_ids" not in sent
    assert call.choices[0].token_ids.tolist() == [5, 6]
    assert "malformed answer" in call.error
    assert words in call.error


@BOTH
@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_invalid_utf8_and_deep_nesting_are_answered(
    at: Desk, stream: bool, dialect: str
) -> None:
    """A2: bytes that are no text, and JSON nested 100,000 deep, cost no 500 and no record."""
    attempt = await at.attempt()
    bad = plain({"content": "a~b"}) if not stream else chunk({"content": "a~b"}, "stop")
    deep = b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for data in (bad.replace(b"~", b"\xff"), b"data: " + deep + b"\n\n" if stream else deep):
        await at.answer(data, kind=STREAM if stream else "")
        got = await at.ask(attempt, dialect, stream=stream)
        assert got.status in (200, 502)
        if dialect == "chat":
            assert got.status == 200
            assert (
                "a\ufffdb".encode() if data is not deep and deep not in data else b"[[["
            ) in got.body
    first, second = await at.calls(attempt)
    assert first.choices[0].text == "a\ufffdb"
    assert "invalid UTF-8" in first.error
    assert second.error
    assert not second.complete


async def test_what_cannot_be_recorded_is_answered(at: Desk, monkeypatch: Any, caplog: Any) -> None:
    """A1: the call ends in a finally: a record that cannot be built blocks no seal."""

    def broken(*_: Any) -> Any:
        raise TypeError("no record")

    monkeypatch.setattr("agl_core.gateway._recording.model_call", broken)
    attempt = await at.attempt()
    await at.answer(plain({"content": "hi"}))
    assert b"hi" in (await at.ask(attempt)).body
    (call,) = await at.calls(attempt)
    assert "cannot be recorded (TypeError: no record)" in call.error
    assert (call.complete, call.trainable, call.policy) == (False, True, "trained")
    assert "Could not record call" in caplog.text


async def test_a_call_that_does_not_end_does_not_hold_its_seal(at: Desk, monkeypatch: Any) -> None:
    """A1: sealing is bounded; a call that ignores being stopped is recorded once, as such."""
    monkeypatch.setattr(waits, "STOPPED_CALLS_S", 0.01)
    attempt = await at.attempt()
    inside, go = asyncio.Event(), asyncio.Event()

    async def stubborn() -> AsyncIterator[bytes]:
        inside.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        yield plain({"content": "late"})

    monkeypatch.setattr(at.script, "body", stubborn)
    asking = asyncio.create_task(at.ask(attempt))
    await inside.wait()
    (call,) = await at.calls(attempt)
    assert "did not end" in call.error
    go.set()
    await asking
    assert len(await at.calls(attempt)) == 1


async def test_a_store_that_hangs_does_not_hold_the_seal(at: Desk, monkeypatch: Any) -> None:
    """A1: sealing fails in bounded time where the store does not answer, and can be repeated."""
    monkeypatch.setattr(waits, "RECORDS_S", 0.01)
    attempt = await at.attempt()
    await at.answer(plain({"content": "hi"}))
    await at.ask(attempt)
    with monkeypatch.context() as patch:
        patch.setattr(at.store, "add_spans", lambda _: asyncio.Event().wait())
        with pytest.raises(StoreError, match="did not accept the call records"):
            await at.gateway.seal(attempt.id)
    monkeypatch.setattr(waits, "RECORDS_S", 60.0)
    assert len(await at.calls(attempt)) == 1


@pytest.mark.parametrize("status", [101, 204, 205, 600, 999])
async def test_a_status_without_an_answer_is_the_backends_fault(at: Desk, status: int) -> None:
    """A2: no status that a backend invents is passed to a server that cannot send it."""
    attempt = await at.attempt()
    await at.answer(plain({"content": "hi"}), status=status)
    got = await at.ask(attempt)
    assert got.status == 502
    (call,) = await at.calls(attempt)
    assert f"HTTP {status}" in call.error


async def test_headers_that_http_does_not_allow_cost_no_answer(at: Desk) -> None:
    """A2: control characters in a backend's headers are blanks for the client."""
    attempt = await at.attempt()
    await at.answer(plain({"content": "hi"}))
    at.script.headers = {"X-Odd": "a\x00b\x1fc\x7f", "bad name": "x", "x\x01": "y", "X-Good": "é"}
    got = await at.ask(attempt)
    assert (got.status, got.headers[b"x-odd"]) == (200, b"a b c ")
    assert got.headers.keys() == {
        b"x-odd", b"x-good", b"content-type", b"content-length", b"x-agl-call"
    }  # fmt: skip


@pytest.mark.parametrize("status", [301, 307, 308, 304])
async def test_a_redirect_is_no_answer(at: Desk, status: int) -> None:
    """D4: a redirect is neither followed nor relayed to a client that would follow it."""
    attempt = await at.attempt()
    at.script.status, at.script.headers = status, {"Location": "http://elsewhere/v1"}
    got = await at.ask(attempt)
    assert got.status == 502
    assert b"location" not in got.headers
    assert b"http://elsewhere/v1" in got.body
    (call,) = await at.calls(attempt)
    assert "redirects to 'http://elsewhere/v1'" in call.error
