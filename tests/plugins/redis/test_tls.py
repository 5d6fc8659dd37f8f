"""``rediss://`` at a real server, with certificates of an authority that the test makes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agl_events import BusError
from agl_events._bus import Bus, make_bus

from agl_core.app import load_plugins
from agl_core.errors import ConfigError
from tests.core.app.conftest import Bench
from tests.plugins.events.bus_contract import message, refused
from tests.plugins.limits.authority import Authority, Files
from tests.plugins.redis.conftest import RedisServer, binary_of, free_port


@pytest.fixture(scope="module")
def authority(tmp_path_factory: Any) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: Any) -> Authority:
    """Another authority, which signed nothing here."""
    return Authority(tmp_path_factory.mktemp("stranger"))


class TlsServer(RedisServer):
    """The distribution's Redis with a port for TLS; the Valkey of the package has no TLS."""

    def __init__(self, directory: Path, authority: Authority, files: Files) -> None:
        self.tls_port = free_port()
        options = {
            "tls-port": self.tls_port,
            "tls-cert-file": files.cert,
            "tls-key-file": files.key,
            "tls-ca-cert-file": authority.file,
            "tls-auth-clients": "no",
        }
        given = [str(each) for name, value in options.items() for each in (f"--{name}", value)]
        super().__init__(binary_of("redis"), directory, *given)

    def over_tls(self, query: str = "", login: str = "") -> str:
        return f"rediss://{login}127.0.0.1:{self.tls_port}/0{query}"


@pytest.fixture(scope="module")
def server(authority: Authority, tmp_path_factory: Any) -> Iterator[TlsServer]:
    made = TlsServer(tmp_path_factory.mktemp("redis"), authority, authority.issue())
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch: Any) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


def bus_of(url: str, **options: Any) -> Bus:
    return make_bus(url, load_plugins(), options)


@pytest.mark.parametrize("named", ["address", "environment"])
async def test_events_go_over_tls_to_a_server_whose_authority_is_named(
    server: TlsServer, authority: Authority, prefix: str, named: str, monkeypatch: Any
) -> None:
    if named == "environment":
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    query = f"?ssl_ca_certs={authority.file}" if named == "address" else ""
    bus = bus_of(server.over_tls(query), prefix=prefix)
    await bus.open()
    assert await bus.publish([message("run:started", n=1)]) == ["delivered"]
    (event,) = await bus.history(["*"], 10)
    assert event.data == {"n": 1}
    await bus.close()


@pytest.mark.parametrize("named", [True, False])
async def test_a_server_of_another_authority_is_refused_in_one_line(
    server: TlsServer, stranger: Authority, named: bool
) -> None:
    query = f"?ssl_ca_certs={stranger.file}" if named else ""
    said = await refused(server.over_tls(query, "me:secret@"), ConfigError)
    assert said.startswith(f"Redis at rediss://***@127.0.0.1:{server.tls_port}/0")
    assert "has a certificate that is not trusted (" in said
    assert "by ssl_ca_certs=FILE in events.url or by SSL_CERT_FILE" in said


async def test_a_certificate_that_has_ended_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    ended = TlsServer(tmp_path, authority, authority.issue("ended", days=-1))
    ended.start()
    try:
        said = await refused(ended.over_tls(f"?ssl_ca_certs={authority.file}"), ConfigError)
    finally:
        ended.stop()
    assert "is not trusted (certificate has expired): give the server one that is valid" in said


async def test_a_server_that_has_tls_only_is_named(server: TlsServer) -> None:
    said = await refused(f"redis://me:secret@127.0.0.1:{server.tls_port}/0", BusError)
    assert "if the server speaks TLS only, write rediss://" in said


async def test_a_server_without_tls_is_named(server: TlsServer, authority: Authority) -> None:
    url = f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs={authority.file}"
    said = await refused(url, BusError, timeout_s=0.5)
    assert "if the server speaks no TLS, write redis://" in said


@pytest.mark.parametrize("holds", [None, "", "no certificate", "key"])
def test_a_file_without_certificates_is_named(
    authority: Authority, tmp_path: Path, holds: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if holds is not None:
        text = Path(authority.issue().key).read_text() if holds == "key" else holds
        file.write_text(text)
    with pytest.raises(ConfigError, match="holds no certificates") as failed:
        bus_of(f"rediss://me:secret@host/0?ssl_ca_certs={file}")
    assert str(file) in str(failed.value)
    assert "secret" not in str(failed.value)


@pytest.mark.parametrize("url", ["rediss://host/0?cafile=a", "redis://host/0?password=secret&a=1"])
def test_an_option_that_there_is_not_is_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown option '(cafile|a)'") as failed:
        bus_of(url)
    assert "secret" not in f"{failed.value} {failed.value.__cause__}"


def test_a_run_with_a_wrong_authority_ends_before_weights_are_loaded(
    bench: Bench, server: TlsServer, stranger: Authority
) -> None:
    bench.sections["events"] = {"url": server.over_tls(f"?ssl_ca_certs={stranger.file}")}
    with pytest.raises(ConfigError, match="not trusted"):
        bench.train()
    assert bench.engine.backends == {}


def test_a_run_publishes_over_tls(
    bench: Bench, server: TlsServer, authority: Authority, prefix: str
) -> None:
    url = server.over_tls(f"?ssl_ca_certs={authority.file}")
    bench.sections["events"] = {"url": url, "prefix": prefix}
    report = bench.train()
    assert not [cause for cause in report.lost if cause.startswith("events")]

    async def kept() -> list[Any]:
        bus = bus_of(url, prefix=prefix)
        await bus.open()
        try:
            return await bus.history(["*"], 1_000)
        finally:
            await bus.close()

    assert len(asyncio.run(kept())) == 60
