"""A backend as a server of its own: what it answers, and when it stops generating."""

from __future__ import annotations

import asyncio
import io

import aiohttp
import pytest
from agl_endpoints import OneModel, OpenAIServer
from agl_responses._request import read

from agl_core.errors import ConfigError, EngineError
from agl_core.gateway import translations
from agl_core.interfaces import Counted


class Backend:
    """Answers in two pieces, the second one when it may, and tells whether it was closed."""

    status = 200

    def __init__(self):
        self.headers = {"content-type": "text/event-stream"}
        self.go_on = asyncio.Event()
        self.closed = asyncio.Event()
        self.error = None
        self.counted = Counted(7, 90)

    async def chat(self, body, *, headers, timeout_s):
        self.asked = body
        if self.error is not None:
            raise self.error
        return self

    async def body(self):
        yield b"data: 1\n\n"
        await self.go_on.wait()
        yield b"data: [DONE]\n\n"

    async def close(self):
        self.closed.set()

    async def count_tokens(self, body):
        if isinstance(self.counted, Exception):
            raise self.counted
        return self.counted


@pytest.fixture
async def backend():
    return Backend()


@pytest.fixture
async def url(backend):
    server = OpenAIServer(OneModel(backend, "m"))
    yield await server.start("127.0.0.1", 0)
    await server.stop()
    await server.stop()


async def test_an_answer_is_passed_on_as_it_comes(backend, url):
    async with aiohttp.request("POST", f"{url}/v1/chat/completions", data=b"{}") as reply:
        assert (reply.status, reply.content_type) == (200, "text/event-stream")
        assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
        backend.go_on.set()
        assert await reply.read() == b"data: [DONE]\n\n"
    await asyncio.wait_for(backend.closed.wait(), 100)
    assert backend.asked == b"{}"


async def test_a_client_that_leaves_ends_the_generation(backend, url):
    async with aiohttp.request("POST", f"{url}/v1/chat/completions", data=b"{}") as reply:
        await reply.content.readuntil(b"\n\n")
        reply.close()
    await asyncio.wait_for(backend.closed.wait(), 100)


async def test_a_backend_without_an_answer_is_told_as_one(backend, url):
    backend.error = EngineError("out of slots")
    async with aiohttp.request("POST", f"{url}/v1/chat/completions", data=b"{}") as reply:
        told = await reply.json()
    assert (reply.status, told["error"]["message"]) == (503, "out of slots")


class Broken(Backend):
    """Its answer breaks off."""

    def __init__(self):
        super().__init__()
        self.headers = {"content-type": "application/json"}

    async def body(self):
        yield b'{"choices"'
        raise EngineError("out of memory")


async def test_a_translated_answer_that_breaks_off_is_an_error():
    """G11: a Responses client gets JSON, not the bare 500 of an application that sent nothing."""
    translate = translations({"POST /responses": read})["/responses"]
    server = OpenAIServer(OneModel(Broken(), "m"), dialects={"/v1/responses": translate})
    url = await server.start("127.0.0.1", 0)
    async with aiohttp.request("POST", f"{url}/v1/responses", json={"input": "hi"}) as reply:
        assert (reply.status, (await reply.json())["error"]["code"]) == (502, "engine_error")
    await server.stop()


@pytest.mark.parametrize(
    ("counted", "status", "told"),
    [
        (Counted(7, 90), 200, b'{"count":7,"max_model_len":90}'),
        (ValueError("roles must alternate"), 400, b"roles must alternate"),
        (None, 501, b"cannot count"),
        (EngineError("gone"), 502, b"gone"),
    ],
)
async def test_prompts_are_counted(backend, url, counted, status, told):
    backend.counted = counted
    async with aiohttp.request("POST", f"{url}/tokenize", data=b"{}") as reply:
        assert reply.status == status
        assert told in await reply.read()


async def test_the_model_is_listed(url):
    async with aiohttp.request("GET", f"{url}/v1/models") as reply:
        assert await reply.json() == {
            "object": "list",
            "data": [{"id": "m", "object": "model"}],
        }


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("POST", "/v1/completions", 404),
    ],
)
async def test_other_requests_are_refused(url, method, path, status):
    async with aiohttp.request(method, url + path) as reply:
        assert reply.status == status
        assert path in (await reply.json())["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_another_model_is_not_served(backend, url, path):
    """G11: a client that asks for another model learns which one is here."""
    body = {"model": "gpt-x", "messages": []}
    async with aiohttp.request("POST", url + path, json=body) as reply:
        error = (await reply.json())["error"]
    assert (reply.status, error["code"]) == (404, "model_not_found")
    assert error["message"] == "Model 'gpt-x' is not served here: ask for 'm'"
    assert not hasattr(backend, "asked")


async def test_the_model_or_none_is_served(backend, url):
    """G11: the name of what is served, or no name at all."""
    backend.go_on.set()
    for body in ({"model": "m"}, {"model": None}, {}, []):
        async with aiohttp.request("POST", f"{url}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200


async def test_a_body_beyond_all_measure_is_refused(url):
    body = io.BytesIO(b" " * (64 * 1024 * 1024 + 1))
    async with aiohttp.request("POST", f"{url}/tokenize", data=body) as reply:
        assert reply.status == 413


async def test_an_end_breaks_off_what_is_under_way(backend):
    server = OpenAIServer(OneModel(backend, "m"))
    url = await server.start("127.0.0.1", 0)
    async with aiohttp.request("POST", f"{url}/v1/chat/completions", data=b"{}") as reply:
        await reply.content.readuntil(b"\n\n")
        await server.stop()
        with pytest.raises(aiohttp.ClientError):
            await reply.read()
    assert backend.closed.is_set()


async def test_a_taken_address_is_named(url, backend):
    port = int(url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"{port}.*another host or port"):
        await OpenAIServer(OneModel(backend, "m")).start("127.0.0.1", port)
