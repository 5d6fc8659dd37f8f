"""The engine of a trainer, which a gateway in another process reaches by ``https://``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from agl_endpoints import HttpBackend
from agl_remote._gateway_client import BackendServer
from agl_testing.fake_openai import FakeOpenAI

from agl_core.errors import ConfigError, EngineError
from agl_core.serving import tls_context
from tests.core.app.conftest import Bench, bench  # noqa: F401  a fixture
from tests.plugins.limits.authority import Authority, Files
from tests.plugins.limits.test_tls import (  # noqa: F401  fixtures
    authority,
    command_of,
    environment_of_before,
    files,
)

KEY = "a-shared-secret"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses at which trainers of this process serve their engines."""
    urls: list[str] = []
    serve = BackendServer.serve

    def serving(server: BackendServer, policy: str, backend: Any) -> str:
        urls.append(serve(server, policy, backend))
        return urls[-1]

    monkeypatch.setattr(BackendServer, "serve", serving)
    monkeypatch.setenv("AGL_API_KEY", KEY)
    return urls


async def train(bench: Bench, folder: Path, trusted: Path, **settings: Any) -> Any:  # noqa: F811
    """Train over a gateway in another process, which trusts the authority in a file."""
    file = str(folder / "store.db")
    given = ("gateway", "--store", file, "--ca", str(trusted))
    async with command_of(*given, AGL_API_KEY=KEY) as (_, url):
        app = bench.app(
            gateway__url=url, store__name="sqlite", store__path=file, **settings, train__steps=1
        )
        return await app.train()


def test_a_gateway_of_another_process_reaches_the_engine_over_https(
    bench: Bench,  # noqa: F811
    authority: Authority,  # noqa: F811
    files: Files,  # noqa: F811
    served: list[str],
    tmp_path: Path,
) -> None:
    tls = {"gateway__tls_cert": files.cert, "gateway__tls_key": files.key}
    report = asyncio.run(train(bench, tmp_path, authority.file, **tls))
    assert len(report.steps) == 1
    assert served
    assert all(url.startswith("https://127.0.0.1:") for url in served)


@pytest.mark.parametrize("wrong", ["authority", "host"])
def test_a_certificate_that_the_gateway_does_not_trust_ends_the_run_in_one_line(
    bench: Bench,  # noqa: F811
    authority: Authority,  # noqa: F811
    files: Files,  # noqa: F811
    served: list[str],
    tmp_path: Path,
    wrong: str,
) -> None:
    settings = {"gateway__tls_cert": files.cert, "gateway__tls_key": files.key}
    trusted = authority.file
    if wrong == "host":
        settings["gateway__backend_host"] = "127.0.0.2"
    else:
        (tmp_path / "other").mkdir()
        trusted = Authority(tmp_path / "other").file
    with pytest.raises(EngineError, match="has a certificate that is not trusted") as caught:
        asyncio.run(train(bench, tmp_path, trusted, **settings))
    message = str(caught.value)
    assert served[0].removesuffix("/v1") in message
    assert "gateway.tls_cert names, and start agl gateway with --ca FILE" in message
    assert "\n" not in message


def test_a_certificate_that_cannot_be_read_ends_the_run_before_it_begins(
    bench: Bench,  # noqa: F811
    files: Files,  # noqa: F811
) -> None:
    wrong = {"gateway__tls_cert": files.key, "gateway__url": "http://127.0.0.1:9"}
    with pytest.raises(ConfigError, match="Cannot serve TLS with the certificate"):
        asyncio.run(bench.app(**wrong).train())


def test_an_evaluation_apart_serves_no_certificate_of_the_engine(
    bench: Bench,  # noqa: F811
    files: Files,  # noqa: F811
) -> None:
    tls = {"gateway__tls_cert": files.cert, "gateway__tls_key": files.key}
    app = bench.app(gateway__url="http://127.0.0.1:9", **tls)
    apart = app.apart("eval").config.gateway
    assert (apart.url, apart.tls_cert, apart.tls_key) == (None, None, None)
    assert bench.app(**tls).apart("eval").config.gateway.tls_cert == files.cert


async def test_a_certificate_may_be_for_a_name(authority: Authority, files: Files) -> None:  # noqa: F811
    os.environ["SSL_CERT_FILE"] = str(authority.file)
    async with FakeOpenAI() as fake:
        model = HttpBackend(fake.base_url, model="m")
        server = BackendServer("localhost", tls=tls_context(files.cert, files.key))
        await server.start()
        url = server.serve("trained", model)
        assert url.startswith("https://localhost:")
        backend = HttpBackend(url, api_key=server.key, model="m")
        body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
        reply = await backend.chat(body, headers={}, timeout_s=60.0)
        assert reply.status == 200
        assert b"".join([chunk async for chunk in reply.body()])
        await reply.close()
        for each in (backend, model):
            await each.close()
        await server.stop()
