"""Model servers that are only reached through a proxy."""

from __future__ import annotations

import pytest
from aiohttp import web

from agl_core.errors import EngineError
from agl_core.serving.backend_http import HttpBackend
from agl_core.serving.proxies import proxy_for
from agl_core.testing.fake_openai import FakeOpenAI

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
    """A proxy that answers for every address itself."""
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(str(request.raw_path))
        return web.json_response({"choices": []})

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
    assert proxy_for("https://models.example/v1") == "http://proxy.example:3128"
    assert proxy_for(url) is None
