"""What a model thinks is told apart on the record; nobody's text or tokens change for it."""

from __future__ import annotations

from typing import Any

import pytest
from agl_testing.fake_openai import FakeOptions, FakeReply

from agl_core.thinking import Part

BOTH = [(Part("thinking", "six sevens"), Part("text", "42"))]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize(
    ("reply", "tags"),
    [
        (FakeReply(text="42", reasoning="six sevens"), None),
        ("<think>six sevens</think>42", None),
        ("[T]six sevens[/T]42", ["think", "[T] [/T]"]),
    ],
)
async def test_every_form_of_thinking_is_the_same_parts(
    make_world: Any, stream: bool, reply: Any, tags: Any
) -> None:
    world = await make_world(FakeOptions(stable=True))
    world.server.script = lambda body: reply
    attempt = await world.attempt(metadata={"thinking_tags": tags} if tags else {})
    answer = await world.ask(attempt, stream=stream)
    (call,) = await world.calls(attempt)
    assert call.parts == BOTH
    answered = world.server.log[0].choices[0]
    assert call.choices[0].text == answered.text
    assert call.choices[0].token_ids.tolist() == answered.token_ids
    chunks = answer["chunks"] if stream else [answer]
    rows = [row["delta" if stream else "message"] for c in chunks for row in c["choices"]]
    assert "".join(row.get("content") or "" for row in rows) == answered.text


async def test_tags_that_the_run_does_not_name_are_text(make_world: Any) -> None:
    world = await make_world()
    world.server.script = lambda body: "<think>a</think>b"
    attempt = await world.attempt(metadata={"thinking_tags": ["reason"]})
    await world.ask(attempt)
    (call,) = await world.calls(attempt)
    assert call.parts == [(Part("text", "<think>a</think>b"),)]
