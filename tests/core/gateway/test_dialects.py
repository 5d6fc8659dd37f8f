"""Dialects that plugins add: requests and answers in their form, calls recorded as chat completions."""

import json

import pytest
from agl_testing.fake_openai import FakeReply

from agl_core.errors import PluginError
from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.interfaces import Problem
from agl_core.store._memory import MemoryStore
from tests.core.gateway.conftest import OPTIONS


class Plain:
    """Says an answer as lines of text."""

    def __init__(self):
        self.text = ""

    def add(self, delta):
        self.text += delta.content
        return delta.content.encode()

    def end(self):
        return b"."

    def fail(self, error):
        return f"! {error['message']}".encode()

    def document(self):
        return json.dumps(self.text).encode()


def plain(body):
    """The body is the prompt; one that begins with ``~`` is streamed."""
    text = body.decode()
    if not text:
        raise Problem(400, "empty", "An empty body asks nothing: send a prompt", param="body")
    stream = text.startswith("~")
    messages = [{"role": "user", "content": text.removeprefix("~")}]
    return json.dumps({"model": "m", "messages": messages, "stream": stream}).encode(), Plain()


@pytest.fixture
async def plain_world(world):
    await world.gateway.stop()
    world.gateway = GatewayServer(world.store, OPTIONS, dialects={"POST /plain": plain})
    await world.route("trained", ("writer",), trainable=True)
    await world.gateway.start()
    yield world
    await world.gateway.stop()


async def ask(world, attempt, body):
    url = f"{world.gateway.url}/v1/plain"
    async with world.session.post(url, data=body, headers=world.headers(attempt)) as answer:
        return answer.status, await answer.read()


async def test_a_dialect_is_translated_both_ways_and_recorded_as_a_chat_completion(plain_world):
    world = plain_world
    attempt = await world.attempt()
    assert await ask(world, attempt, b"hello") == (200, b'"hello"')
    assert await ask(world, attempt, b"~hello") == (200, b"hello.")
    calls = await world.calls(attempt)
    assert [call.streamed for call in calls] == [False, True]
    for call in calls:
        assert call.messages == [{"role": "user", "content": "hello"}]
        assert call.choices[0].text == "hello"
        assert call.prompt_token_ids
        assert call.choices[0].token_ids
        assert call.complete
    assert [call.answer_bytes for call in calls] == [7, 6]


async def test_what_a_dialect_refuses_is_answered_and_recorded(plain_world):
    world = plain_world
    attempt = await world.attempt()
    status, body = await ask(world, attempt, b"")
    assert status == 400
    assert json.loads(body)["error"]["param"] == "body"
    (call,) = await world.calls(attempt)
    assert call.error.startswith("empty: ")


async def test_an_answer_that_breaks_off_fails_in_the_dialect(plain_world):
    world = plain_world
    attempt = await world.attempt()
    world.server.script = lambda body: FakeReply(text="hello", finish_reason="odd")
    assert (await ask(world, attempt, b"hello"))[0] == 502
    status, body = await ask(world, attempt, b"~hello")
    assert status == 200
    assert b"! The backend aborted its answer with finish reason 'odd'" in body


async def test_a_path_that_no_dialect_serves_names_those_that_are(plain_world):
    world = plain_world
    attempt = await world.attempt()
    url, headers = f"{world.gateway.url}/v1/responses", world.headers(attempt)
    async with world.session.post(url, json={"input": "hi"}, headers=headers) as answer:
        assert answer.status == 404
        message = (await answer.json())["error"]["message"]
    assert message.endswith("use POST .../v1/chat/completions or /plain")
    (call,) = await world.calls(attempt)
    assert call.status_code == 404


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("POST /chat/completions", "/chat/completions is served by agl-core itself"),
        ("GET /plain", "method and a path"),
        ("plain", "method and a path"),
    ],
)
def test_a_dialect_that_cannot_be_served_is_refused(name, reason):
    with pytest.raises(PluginError, match=reason):
        GatewayServer(MemoryStore(), GatewayOptions(), dialects={name: plain})
