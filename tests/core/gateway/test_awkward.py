"""Half characters and clocks that go back: agents get their answers, records stay true."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.clocks import wall_ns
from agl_core.gateway import _recording as recording
from agl_core.text import replaced_json

AWKWARD = "NUL \x00, lone \ud83d and \udfff, \\ud83d, both \U0001f600, line\r\n\u2028"
MENDED = "NUL \x00, lone \ufffd and \ufffd, \\ud83d, both \U0001f600, line\r\n\u2028"


def is_half(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


@given(st.lists(st.sampled_from(["\ud83d", "\ude00", "\U0001f600", "\\", "u", "d83d", '"', "a"])))
def test_only_half_characters_are_replaced(parts: list[str]) -> None:
    # As Python reads it: halves that follow each other are one character.
    text = json.loads(json.dumps("".join(parts)))
    expected = "".join("\ufffd" if is_half(each) else each for each in text)
    assert json.loads(replaced_json(json.dumps(text).encode())) == expected


@pytest.mark.parametrize("escape", [b"\\uD83D", b"\\udFfF", b"\\uD83D\\uD83D"])
def test_the_case_of_digits_does_not_matter(escape: bytes) -> None:
    assert set(json.loads(b'"' + replaced_json(escape) + b'"')) == {"\ufffd"}


@pytest.mark.parametrize("agent", ["writer", "other"], ids=["trained", "frozen"])
@pytest.mark.parametrize("stream", [False, True])
async def test_half_characters_cost_nobody_an_answer(world: Any, stream: bool, agent: str) -> None:
    def tamper(body: dict[str, Any]) -> None:
        for choice in body["choices"]:
            part = choice.get("message") or choice.get("delta") or {}
            if part.get("content"):
                part["content"] = "said \ud83d"

    escape = json.dumps
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json, "dumps", lambda value, **_: escape(value))
        world.server.tamper = tamper
        attempt = await world.attempt()
        asked = {
            "messages": [{"role": "user", "content": AWKWARD}],
            "stream": stream,
            "cache_key": AWKWARD,
        }
        async with world.session.post(
            world.gateway.url + "/v1/chat/completions",
            data=escape(asked),
            headers={**world.headers(attempt, agent), "content-type": "application/json"},
        ) as answer:
            body = await answer.text()
            assert answer.status == 200, body
    assert "said \\u" in body
    (answered,) = world.server.log
    assert answered.body["messages"][0]["content"] == MENDED
    (call,) = await world.calls(attempt)
    assert call.error == ""
    assert call.complete
    assert call.messages[0]["content"] == MENDED
    assert call.sampling.extra["cache_key"] == MENDED
    assert set(call.choices[0].text.split("said ")) == {"", "\ufffd"}


async def test_a_call_during_which_the_clock_went_back_takes_no_negative_time(
    world: Any, monkeypatch: Any
) -> None:
    attempt = await world.attempt()
    monkeypatch.setattr(recording, "wall_ns", lambda: wall_ns() - 3_600_000_000_000)
    await world.ask(attempt)
    (call,) = await world.calls(attempt)
    assert call.ended_ns == call.started_ns


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/tokenize"])
async def test_what_is_nested_too_deep_to_be_read_is_refused(world: Any, path: str) -> None:
    attempt = await world.attempt()
    deep = b'{"messages": [{"role": ' + b"[" * 60_000
    async with world.session.post(
        world.gateway.url + "/v1" + path, data=deep, headers=world.headers(attempt)
    ) as answer:
        assert answer.status == 400, await answer.text()
        assert (await answer.json())["error"]["code"] == "invalid_body"
