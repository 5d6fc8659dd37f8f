"""``https://`` at the gateway and the commands that serve, with real clients and certificates."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from agl_endpoints import SERVER_TLS, HttpBackend, OneModel, OpenAIServer
from agl_limits import Limiter
from agl_remote._store_client import HttpStore
from agl_remote._store_server import StoreServer
from agl_testing.fake_openai import FakeOpenAI
from click.testing import CliRunner

import agl_core as agl
from agl_core.cli.group import cli
from agl_core.config import resolve
from agl_core.config.loader import load_config
from agl_core.errors import ConfigError
from agl_core.gateway import GatewayOptions
from agl_core.serving import tls_context
from agl_core.store import MemoryStore
from tests.core.gateway.conftest import QUICK, World, make_world  # noqa: F401  a fixture
from tests.plugins.limits.authority import Authority, Files


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> Files:
    return authority.issue()


@pytest.fixture(autouse=True)
def environment_of_before() -> Iterator[None]:
    before, tls = os.environ.pop("SSL_CERT_FILE", None), SERVER_TLS.set(None)
    yield
    os.environ.pop("SSL_CERT_FILE", None)
    if before is not None:
        os.environ["SSL_CERT_FILE"] = before
    SERVER_TLS.reset(tls)


def trusting(authority: Authority, **given: Any) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.file))
    for name, value in given.items():
        setattr(context, name, value)
    return context


@pytest.fixture
async def secure(make_world: Any, files: Files) -> World:  # noqa: F811
    tls = tls_context(files.cert, files.key)
    return await make_world(None, GatewayOptions(recording=QUICK, tls=tls))


async def test_real_clients_ask_over_https_and_are_recorded(
    secure: World, authority: Authority
) -> None:
    attempt = await secure.attempt()
    assert secure.gateway.url.startswith("https://127.0.0.1:")
    context = trusting(authority)
    named = secure.headers(attempt)
    key = secure.gateway.attempt_key(attempt.rollout_id, attempt.id)
    async with (
        httpx.AsyncClient(verify=context, timeout=600.0) as http,
        openai.AsyncOpenAI(
            base_url=f"{secure.gateway.url}/v1",
            api_key=key,
            default_headers=named,
            http_client=http,
        ) as client,
    ):
        asked: Any = [{"role": "user", "content": "héllo"}]
        plain = await client.chat.completions.create(model="m", messages=asked)
        assert "héllo" in (plain.choices[0].message.content or "")
        stream = await client.chat.completions.create(model="m", messages=asked, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(parts) == plain.choices[0].message.content
        answers = await client.responses.create(model="m", input="héllo")
        assert "héllo" in answers.output_text
        raw = await http.post(
            f"{secure.gateway.url}/v1/chat/completions",
            headers=named,
            json={"model": "m", "messages": asked},
        )
        assert raw.status_code == 200
    calls = await secure.calls(attempt)
    assert [call.error for call in calls] == [""] * 4
    assert all(call.choices[0].token_ids for call in calls)


async def test_many_clients_at_once(secure: World, authority: Authority) -> None:
    attempt = await secure.attempt()
    connector = aiohttp.TCPConnector(ssl=trusting(authority), limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        secure.session, before = session, secure.session
        answers = await asyncio.gather(*(secure.ask(attempt, stream=n % 2 == 1) for n in range(60)))
    secure.session = before
    assert len(answers) == 60
    assert len(await secure.calls(attempt)) == 60


async def test_a_client_that_leaves_is_noticed(
    secure: World, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await secure.attempt()
    begun, never = asyncio.Event(), asyncio.Event()

    async def before_send(answered: Any, position: int) -> None:
        begun.set()
        await never.wait()

    loop = asyncio.get_running_loop()
    secure.server.before_send = before_send
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    head = [f"{name}: {value}" for name, value in secure.headers(attempt).items()]
    port = int(secure.gateway.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trusting(authority), server_hostname="localhost"
    )
    head = ["POST /v1/chat/completions HTTP/1.1", "host: x", f"content-length: {len(body)}", *head]
    writer.write("\r\n".join([*head, "", ""]).encode() + body)
    await writer.drain()
    await secure.until(lambda: secure.server.in_flight)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    await secure.idle()
    del reader, loop
    (call,) = await secure.calls(attempt)
    assert call.status_code == 499
    assert "eof_received" not in caplog.text


async def test_a_client_without_tls_is_refused(secure: World) -> None:
    url = secure.gateway.url.replace("https://", "http://")
    async with httpx.AsyncClient() as client:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            await client.get(f"{url}/health")
    attempt = await secure.attempt()
    assert await secure.calls(attempt) == []


async def test_older_protocols_and_strangers_are_refused(
    secure: World, authority: Authority
) -> None:
    port = int(secure.gateway.url.rpartition(":")[2])
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old = trusting(
            authority,
            minimum_version=ssl.TLSVersion.TLSv1,
            maximum_version=ssl.TLSVersion.TLSv1_1,
        )
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=old)
    async with httpx.AsyncClient() as client:  # does not know the authority
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(f"{secure.gateway.url}/health")
    async with httpx.AsyncClient(verify=trusting(authority)) as client:
        assert (await client.get(f"{secure.gateway.url}/health")).status_code == 200


def test_a_certificate_that_is_not_good_is_named_in_one_line(authority: Authority) -> None:
    good, other = authority.issue("good"), authority.issue("other")
    ended, coming = authority.issue("ended", days=-1), authority.issue("coming", days=40)
    locked = authority.issue("locked", password=b"x")
    folder = authority.folder
    (folder / "text.pem").write_text("no certificate")
    for cert, key, message in (
        (good.cert, other.key, "belong together"),
        (good.cert, None, "belong together"),
        (good.cert, str(folder / "none.key"), "none.key.*No such file"),
        (str(folder / "none.pem"), good.key, "none.pem.*No such file"),
        (None, good.key, "certificate None"),
        (str(folder / "text.pem"), good.key, "text.pem"),
        (str(folder), good.key, "directory|PEM"),
        (locked.cert, locked.key, "without a password"),
        (ended.cert, ended.key, "ended.pem' is valid from .* to .*renew it"),
        (coming.cert, coming.key, "coming.pem' is valid from"),
    ):
        with pytest.raises(ConfigError, match=message) as refused:
            tls_context(cert, key)
        assert "\n" not in str(refused.value)
    both = folder / "both.pem"
    both.write_text(Path(good.cert).read_text() + Path(good.key).read_text())
    assert tls_context(str(both), None) is not None
    assert tls_context(None, None) is None
    assert tls_context("", "") is None


def test_paths_in_a_run_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'model = "m"\n[gateway]\ntls_cert = "a.pem"\ntls_key = "/b"\n'
    )
    section = load_config(tmp_path / "run.toml").gateway
    assert (section.tls_cert, section.tls_key) == (str(tmp_path / "a.pem"), "/b")


async def test_a_store_is_served_over_https(authority: Authority, files: Files) -> None:
    SERVER_TLS.set(tls_context(files.cert, files.key))
    server = StoreServer(MemoryStore(), key="k")
    SERVER_TLS.set(None)
    await server.start()
    assert server.url.startswith("https://")
    stranger = HttpStore(server.url, "k")
    with pytest.raises(ConfigError, match=r"that is not trusted .*SSL_CERT_FILE"):
        await stranger.open()
    await stranger.close()
    script = (
        "import asyncio, sys\n"
        "from agl_remote._store_client import HttpStore\n"
        "from agl_core.types import RolloutQuery\n"
        "async def main():\n"
        "    store = HttpStore(sys.argv[1], 'k')\n"
        "    await store.open()\n"
        "    print(await store.rollouts(RolloutQuery()))\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    told = {**os.environ, "SSL_CERT_FILE": str(authority.file)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, server.url, env=told, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.decode().strip() == "[]"
    await server.stop()


async def test_an_endpoint_is_served_over_https(authority: Authority, files: Files) -> None:
    async with FakeOpenAI() as fake:
        backend = HttpBackend(fake.base_url)
        tls = tls_context(files.cert, files.key)
        server = OpenAIServer(OneModel(backend, "m"), tls=tls)
        url = await server.start("127.0.0.1", 0)
        async with httpx.AsyncClient(verify=trusting(authority)) as client:
            listed = await client.get(f"{url}/v1/models")
        assert url.startswith("https://")
        assert listed.json()["data"][0]["id"] == "m"
        await server.stop()
        await backend.close()


PROGRAM = """
import sys
import agl_core as agl
import httpx

async def agent(task):
    llm = agl.current().llm
    assert llm.base_url.startswith("https://"), llm.base_url
    async with httpx.AsyncClient(timeout=600) as client:
        with agl.agent_scope("writer"):
            answer = await client.post(
                f"{llm.base_url}/chat/completions",
                headers={"authorization": f"Bearer {llm.api_key}"},
                json={"model": "m", "messages": [{"role": "user", "content": "yes"}]},
            )
    return answer.json()["choices"][0]["message"]["content"]

def right(task, output, attempt):
    return float("yes" in output)

found = agl.evaluate(agent, [{"input": 1}], reward=right, config=sys.argv[1], progress=False)
print("failed", found.failed, found.lost)
"""


async def test_a_run_in_one_process_serves_its_agents_over_https(
    authority: Authority, files: Files, tmp_path: Path
) -> None:
    async with FakeOpenAI() as fake:
        config = {
            "directory": str(tmp_path),
            "model": "m",
            "engine": {"name": "http", "base_url": fake.base_url},
            "gateway": {"tls_cert": files.cert, "tls_key": files.key},
        }
        file = tmp_path / "run.json"
        file.write_text(json.dumps(config))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(file)),
            env={**os.environ, "SSL_CERT_FILE": str(authority.file)},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert out.decode().strip() == "failed {} {}"


def test_a_run_with_a_wrong_certificate_does_not_start(tmp_path: Path, files: Files) -> None:
    section = {"tls_cert": str(tmp_path / "none.pem"), "tls_key": files.key}
    with pytest.raises(ConfigError, match=r"none\.pem"):
        agl.evaluate(
            lambda task: "",
            [{"input": 1}],
            reward=lambda *_: 0.0,
            config=resolve(
                {
                    "directory": str(tmp_path),
                    "model": "m",
                    "engine": {"name": "http", "base_url": "http://127.0.0.1:9/v1"},
                    "gateway": section,
                }
            ),
            progress=False,
        )


@pytest.mark.parametrize(
    "command", [["store", "serve", "x.db"], ["gateway", "--store", "x.db"], ["serve", "."]]
)
def test_a_command_names_a_wrong_certificate(
    command: list[str], files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--tls-key", files.key, "--tls-cert", "none.pem"]
    done = CliRunner().invoke(cli, [*command, *given])
    assert done.exit_code == 2, done.output
    assert "Cannot serve TLS with the certificate 'none.pem'" in done.output
    assert "Traceback" not in done.output


def test_the_option_ca_names_a_file_without_certificates(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('model = "m"\n')
    for command in (["gateway", "--store", "x.db"], ["runner", str(run)], ["train", str(run)]):
        done = CliRunner().invoke(cli, [*command, "--ca", str(run)])
        assert done.exit_code == 2, done.output
        assert "holds no certificates" in done.output
    assert "SSL_CERT_FILE" not in os.environ


@asynccontextmanager
async def command_of(*arguments: str, **environment: str) -> AsyncIterator[tuple[Any, str]]:
    """A command that prints where it serves, and the address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agl_core.cli", *arguments),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    try:
        yield process, line.rpartition(" at ")[2].strip()
    finally:
        process.terminate()
        await process.wait()


async def test_store_and_gateway_of_other_processes_meet_over_https(
    authority: Authority, files: Files, tmp_path: Path
) -> None:
    tls = ["--tls-cert", files.cert, "--tls-key", files.key]
    key = {"AGL_API_KEY": "a-shared-secret"}
    async with (
        command_of("store", "serve", str(tmp_path / "s.db"), *tls, **key) as (_, store),
        command_of(*("gateway", "--store", store, "--ca", str(authority.file), *tls), **key) as (
            _,
            gateway,
        ),
    ):
        assert store.startswith("https://")
        assert gateway.startswith("https://")
        async with httpx.AsyncClient(verify=trusting(authority)) as client:
            assert (await client.get(f"{gateway}/health")).json()["status"] == "ok"


async def test_redis_over_tls_takes_the_authority_in_its_address(
    redis: Any, authority: Authority, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", redis.port)
        await asyncio.gather(copy(reader, inner[1]), copy(inner[0], writer))

    tls = tls_context(files.cert, files.key)
    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    url = f"rediss://localhost:{port}/0"
    one, other = (
        Limiter("2/hour", redis=f"{url}?ssl_ca_certs={authority.file}", space="s") for _ in range(2)
    )
    found = [(await each.ahit("a")).allowed for each in (one, other, one)]
    assert found == [True, True, False]
    assert not caplog.records
    stranger = Limiter("2/hour", redis=url, space="s")
    assert (await stranger.ahit("a")).allowed  # it counts by itself
    assert "Redis does not answer" in caplog.text
    for each in (one, other, stranger):
        await each.aclose()
    server.close()
    await server.wait_closed()
