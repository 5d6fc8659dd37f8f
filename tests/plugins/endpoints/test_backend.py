from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agl_endpoints import HttpBackend
from agl_testing.fake_openai import FakeOpenAI, FakeOptions
from aiohttp import web

from agl_core.errors import EngineError
from tests.core.passing import pass_time

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


async def read(backend: HttpBackend, *, timeout_s: float = 60.0) -> tuple[int, bytes]:
    reply = await backend.chat(BODY, headers={"x-trace": "1"}, timeout_s=timeout_s)
    try:
        return reply.status, b"".join([chunk async for chunk in reply.body()])
    finally:
        await reply.close()


async def test_sends_the_body_as_it_stands_with_its_own_key() -> None:
    async with FakeOpenAI(options=FakeOptions(api_key="k")) as server:
        backend = HttpBackend(server.base_url + "/", api_key="k", model="fake-model")
        status, _ = await read(backend)
        assert status == 200
        assert await backend.models() == ["fake-model"]
        headers = server.log[0].headers
        assert headers["accept-encoding"] == "identity"
        assert headers["x-trace"] == "1"
        assert server.log[0].body["model"] == "m"
        await backend.close()
        await backend.close()
        wrong = HttpBackend(server.base_url, api_key="x")
        assert (await read(wrong))[0] == 401
        await wrong.close()


async def test_a_large_body_is_sent_without_a_warning_and_as_it_stands() -> None:
    async with FakeOpenAI(options=FakeOptions(max_model_len=10**9)) as server:
        backend = HttpBackend(server.base_url, model="fake-model")
        text = "x" * 2_000_000  # more than aiohttp takes raw without a word
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})
        reply = await backend.chat(body.encode(), headers={}, timeout_s=60.0)
        assert reply.status == 200
        await reply.close()
        assert server.log[0].body["messages"][0]["content"] == text
        await backend.close()


async def test_timeout_and_refused_connection_are_engine_errors() -> None:
    never = asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        pass_time(100)
        await never.wait()

    async with FakeOpenAI() as server:
        server.before_send = before_send
        backend = HttpBackend(server.base_url)
        with pytest.raises(EngineError, match=r"did not answer within 100\.0 s"):
            await read(backend, timeout_s=100)
        await server.ended(1)
        assert server.log[0].closed_early
    with pytest.raises(EngineError, match="base_url"):
        await read(backend)
    assert await backend.models() == []
    await backend.close()


async def test_a_pooled_connection_that_died_is_replaced() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"}]}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await writer.drain()
        if connections == 1:
            await reader.readuntil(b"}]}")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = HttpBackend(f"http://127.0.0.1:{port}/v1")
    assert await read(backend) == (200, b"{}")
    assert await read(backend) == (200, b"{}")
    assert connections == 2
    await backend.close()
    server.close()
    await server.wait_closed()


async def test_an_answer_that_breaks_off_is_an_engine_error() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}]}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    backend = HttpBackend(f"http://127.0.0.1:{port}/v1")
    with pytest.raises(EngineError, match="broke off"):
        await read(backend)
    await backend.close()
    server.close()
    await server.wait_closed()


async def test_context_and_text_are_told_where_the_server_knows_them() -> None:
    async with FakeOpenAI(options=FakeOptions(max_model_len=77, detokenize=True)) as server:
        backend = HttpBackend(server.base_url, model="fake-model")
        assert await backend.context_length() == 77
        assert await backend.detokenize([*(16 + byte for byte in b"hi"), 2]) == "hi"
        await backend.close()
        other = HttpBackend(server.base_url, model="another")
        assert await other.context_length() is None
        await other.close()


async def test_an_adapter_has_the_context_of_the_model_below_it() -> None:
    rows = [
        {"id": "base", "max_model_len": 77, "parent": None},
        {"id": "writer-v1", "max_model_len": None, "parent": "base"},
        {"id": "stray", "max_model_len": None, "parent": "gone"},
    ]

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": rows})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    found = {}
    for name in ("base", "writer-v1", "stray"):
        backend = HttpBackend(f"http://{host}:{port}/v1", model=name)
        found[name] = await backend.context_length()
        await backend.close()
    await runner.cleanup()
    assert found == {"base": 77, "writer-v1": 77, "stray": None}


async def test_context_and_text_are_unknown_elsewhere() -> None:
    async with FakeOpenAI() as server:
        backend = HttpBackend(server.base_url, model="fake-model")
        assert await backend.detokenize([1]) is None
        await backend.close()
    assert await backend.context_length() is None
    assert await backend.detokenize([1]) is None
    await backend.close()


async def test_an_answer_that_does_not_end_in_time_is_an_engine_error() -> None:
    never = asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        if position > 1:
            await never.wait()

    body = BODY.replace(b"{", b'{"stream": true, ', 1)
    async with FakeOpenAI() as server:
        server.before_send = before_send
        backend = HttpBackend(server.base_url)
        reply = await backend.chat(body, headers={}, timeout_s=100)
        pass_time(100)
        with pytest.raises(EngineError, match="broke off"):
            _ = [chunk async for chunk in reply.body()]
        await reply.close()
        await server.ended(1)
        assert server.log[0].closed_early
        await backend.close()
