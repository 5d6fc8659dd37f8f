"""Requests to other programs: what failures mean, and servers that are reached through a proxy."""

from __future__ import annotations

import socket

import pytest
from agl_endpoints import HttpBackend, HttpClient, failures
from agl_endpoints._client import _proxy_for
from agl_otlp._send import send_attempts
from agl_testing._store_samples import begin, succeed
from agl_testing.fake_openai import FakeOpenAI
from agl_vllm import VllmControl
from aiohttp import (
    ClientPayloadError,
    ConnectionTimeoutError,
    ServerDisconnectedError,
    web,
)

from agl_core.errors import EngineError, StoreError
from agl_core.store._memory import MemoryStore

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "REQUEST_METHOD")
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.fixture
async def proxy():
    """A proxy that answers for every address itself, and refuses tunnels."""
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(str(request.raw_path))
        return web.json_response({"choices": []}, status=404 if "missing" in seen[-1] else 200)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}", seen
    await runner.cleanup()


async def chat(base_url: str) -> int:
    backend = HttpBackend(base_url)
    try:
        reply = await backend.chat(BODY, headers={}, timeout_s=60.0)
        await reply.close()
        return reply.status
    finally:
        await backend.close()


async def resume(url: str) -> None:
    async with VllmControl(url, timeout_s=60.0) as control:
        await control.resume()


async def send(url: str) -> int:
    """How many attempts a collector took; nothing is tried again after a pause."""

    async def pause(seconds: float) -> None:
        pass

    store = MemoryStore()
    await store.open()
    try:
        claim = await begin(store)
        await succeed(store, claim, [])
        return (await send_attempts(store, url, pause=pause)).attempts
    finally:
        await store.close()


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_a_server_is_reached_through_the_proxy(environment, proxy, name):
    """D3: a model server that has no address of its own here."""
    address, seen = proxy
    environment.setenv(name, address)
    assert await chat("http://models.example/v1") == 200
    assert seen == ["http://models.example/v1/chat/completions"]


async def test_this_machine_is_never_reached_through_a_proxy(environment, proxy):
    """D3: loopback, whatever NO_PROXY says."""
    address, seen = proxy
    environment.setenv("HTTP_PROXY", address)
    async with FakeOpenAI() as server:
        await chat(server.base_url)
        assert len(server.log) == 1
    assert seen == []


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
async def test_control_and_collector_are_reached_through_the_proxy(environment, proxy, name):
    """D3: the other servers that a run or a trainer asks."""
    address, seen = proxy
    environment.setenv(name, address)
    await resume("http://models.example/v1")
    assert await send("http://collector.example:4318") == 1
    assert seen == ["http://models.example/resume", "http://collector.example:4318/v1/traces"]


async def test_control_and_collector_on_this_machine_are_reached_without_a_proxy(
    environment, proxy
):
    """D3: loopback, whatever NO_PROXY says; what answers here is the server itself."""
    here, seen = proxy
    environment.setenv("ALL_PROXY", "http://127.0.0.1:9")
    await resume(here)
    assert await send(here) == 1
    assert seen == ["/resume", "/v1/traces"]


@pytest.mark.parametrize(("ask", "error"), [(resume, EngineError), (send, StoreError)])
async def test_errors_of_control_and_collector_name_the_proxy(environment, ask, error):
    """D3: without its password, and with the fix."""
    environment.setenv("HTTPS_PROXY", "http://user:secret@127.0.0.1:9")
    with pytest.raises(error) as refused:
        await ask("https://models.example")
    assert "through the proxy http://127.0.0.1:9" in str(refused.value)
    assert "NO_PROXY" in str(refused.value)
    assert "secret" not in str(refused.value)
    environment.setenv("HTTPS_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(error, match=r"socks5://127.0.0.1:9.*HTTPS_PROXY.*NO_PROXY"):
        await ask("https://models.example")


@pytest.mark.parametrize(("ask", "error"), [(resume, EngineError), (send, StoreError)])
async def test_what_the_proxy_itself_answers_is_reported_with_its_name(
    environment, proxy, ask, error
):
    """D3: an answer of a proxy is easily taken for one of the server."""
    address, _ = proxy
    environment.setenv("HTTP_PROXY", address)
    with pytest.raises(error, match=f"through the proxy {address} .*HTTP 404"):
        await ask("http://missing.example/x")


async def test_errors_name_the_proxy_without_its_password(environment):
    """D3: whoever reads "check base_url" looks in the wrong place."""
    environment.setenv("HTTPS_PROXY", "http://user:secret@127.0.0.1:9")
    with pytest.raises(EngineError) as refused:
        await chat("https://models.example/v1")
    assert "through the proxy http://127.0.0.1:9" in str(refused.value)
    assert "NO_PROXY" in str(refused.value)
    assert "secret" not in str(refused.value)


async def test_a_proxy_that_is_not_spoken_is_named(environment):
    environment.setenv("ALL_PROXY", "socks5://127.0.0.1:1080")
    with pytest.raises(EngineError, match=r"socks5://127.0.0.1:1080.*HTTPS_PROXY.*NO_PROXY"):
        await chat("https://models.example/v1")


@pytest.mark.parametrize(
    "url",
    [
        "https://models.inside.example/v1",
        "https://other.example:8443/v1",
        "http://localhost:8000/v1",
        "http://a.localhost/v1",
        "http://127.0.0.2:8000/v1",
        "http://[::1]:8000/v1",
        "http://0.0.0.0:8000/v1",
    ],
)
def test_what_is_excluded_has_no_proxy(environment, url):
    environment.setenv("ALL_PROXY", "proxy.example:3128")
    environment.setenv("NO_PROXY", "inside.example,other.example:8443")
    assert _proxy_for("https://models.example/v1") == "http://proxy.example:3128"
    assert _proxy_for(url) is None


async def failed(url: str, error: Exception, **given: float) -> str:
    client = HttpClient(url, error=StoreError, check="Check the address")
    try:
        with pytest.raises(failures()):
            raise error
        mapped = client.failed(error, url, **given)
    finally:
        await client.close()
    assert type(mapped) is StoreError
    return str(mapped)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TimeoutError(), "http://a:1/x did not answer within 2.5 s"),
        (ConnectionTimeoutError("no connection"), "http://a:1/x: no connection. Check the address"),
        (ServerDisconnectedError(), "http://a:1/x: Server disconnected. Check the address"),
        (ConnectionResetError(), "http://a:1/x: ConnectionResetError. Check the address"),
        (ClientPayloadError("half"), "http://a:1/x: half. Check the address"),
    ],
)
async def test_an_error_says_what_failed_where_and_what_to_check(error, message):
    said = await failed("http://a:1/x", error, timeout_s=2.5)
    assert said.removeprefix("Cannot reach ") == message


async def test_a_server_that_is_not_there_is_named():
    with socket.socket() as bound:  # it never listens
        bound.bind(("127.0.0.1", 0))
        await refuse(f"http://127.0.0.1:{bound.getsockname()[1]}/x")


async def refuse(url: str) -> None:
    client = HttpClient(url, check="Check the address")
    with pytest.raises(failures()) as failure:
        await client.request("GET", url)
    assert str(client.failed(failure.value, url)).startswith(f"Cannot reach {url}: ")
    await client.close()
