"""The gateway counts a prompt with the backend that would answer it."""

from __future__ import annotations

from typing import Any

import pytest
from agl_endpoints import HttpBackend
from agl_remote._gateway_client import BackendServer
from agl_testing.fake_openai import FakeOpenAI, FakeOptions

from agl_core.errors import EngineError
from agl_core.interfaces import Backend, Counted
from agl_core.serving import GuestServer, address_of, asgi, bind

COUNTING = FakeOptions(tokenize=True, stable=True, max_model_len=500)
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
SYSTEM = {"role": "system", "content": "be brief"}


def turns(count: int) -> list[dict[str, Any]]:
    return [
        {"role": role, "content": f"{role} {n} " + "x" * 20}
        for n in range(count)
        for role in ("user", "assistant")
    ]


async def test_the_gateway_counts_what_the_model_will_read(make_world: Any) -> None:
    world = await make_world(COUNTING)
    attempt = await world.attempt()
    asked = {"messages": [SYSTEM, *turns(2)], "tools": TOOLS}
    async with world.post(world.headers(attempt), path="/v1/tokenize", **asked) as answer:
        counted = await answer.json()
    await world.ask(attempt, **asked)
    assert counted == {"count": len(world.server.log[0].prompt_token_ids), "max_model_len": 500}
    (call,) = await world.calls(attempt)
    assert counted["count"] == len(call.prompt_token_ids)


async def test_a_count_is_asked_for_in_an_attempt_and_of_a_prompt(make_world: Any) -> None:
    world = await make_world(COUNTING)
    attempt = await world.attempt()
    url = f"/r/{attempt.rollout_id}/a/{attempt.id}/agent/writer/v1/tokenize"
    key = world.key(attempt)
    seen = []
    for headers, path, body in (
        (key, url, {}),
        (key, "/v1/tokenize", {}),
        ({}, url, {}),
        (key, url, {"messages": "hi"}),
        (world.headers(attempt), "/v1/tokenize", {"messages": [{"content": "\ud83d"}]}),
    ):
        async with world.post(headers, path=path, **body) as answer:
            seen.append(answer.status)
    assert seen == [200, 400, 401, 400, 200]
    await world.gateway.seal(attempt.id)
    async with world.post(key, path=url) as answer:
        assert answer.status == 410


class Counter(Backend):
    """A backend of this process that counts in its own way."""

    def __init__(self, result: Counted | Exception | None) -> None:
        self.result = result
        self.bodies: list[bytes] = []

    async def chat(self, body: bytes, *, headers: Any, timeout_s: float) -> Any:
        raise NotImplementedError

    async def count_tokens(self, body: bytes) -> Counted | None:
        self.bodies.append(body)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def close(self) -> None:
        """Nothing is open."""


async def over_http(backend: Counter) -> Counted | None:
    server = BackendServer()
    await server.start()
    there = HttpBackend(server.serve("a b", backend), api_key=server.key, model="m")
    try:
        return await there.count_tokens(b'{"messages":[]}')
    finally:
        await there.close()
        await server.stop()


async def test_a_backend_counts_for_a_gateway_in_another_process() -> None:
    backend = Counter(Counted(7, 90))
    assert await over_http(backend) == Counted(7, 90)
    assert backend.bodies == [b'{"messages":[]}']
    assert await over_http(Counter(None)) is None
    with pytest.raises(ValueError, match="alternate"):
        await over_http(Counter(ValueError("roles must alternate")))
    with pytest.raises(EngineError, match="gone"):
        await over_http(Counter(EngineError("gone")))


async def test_a_server_without_tokenize_counts_nothing() -> None:
    async with FakeOpenAI() as server:
        backend = HttpBackend(server.base_url)
        assert await backend.count_tokens(b"{}") is None
        await backend.close()
    with pytest.raises(EngineError, match=r"Cannot reach .*/tokenize"):
        await backend.count_tokens(b"{}")
    await backend.close()


@pytest.mark.parametrize(
    ("status", "content", "expected"),
    [
        (405, b"no", None),
        (501, b"{}", None),
        (200, b'{"tokens": []}', None),
        (200, b'{"count": "\xff"}', None),
        (401, b'{"error": {"message": "no key"}}', "HTTP 401: no key"),
        (429, b"slow down", "HTTP 429: slow down"),
    ],
)
async def test_only_a_server_that_does_not_know_the_way_cannot_count(
    status: int, content: bytes, expected: str | None
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asgi.read_body(receive)
        await asgi.respond(send, status, content)

    listener = bind("127.0.0.1", 0)
    url = address_of(listener)
    server = GuestServer(app)
    await server.start(listener)
    backend = HttpBackend(url + "/v1")
    if expected is None:
        assert await backend.count_tokens(b"{}") is None
    else:
        with pytest.raises(EngineError, match=expected):
            await backend.count_tokens(b"{}")
    await backend.close()
    await server.stop()
