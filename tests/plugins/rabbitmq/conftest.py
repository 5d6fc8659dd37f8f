"""A real RabbitMQ server, started without systemd, with a node and ports of its own."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.app.conftest import bench
from tests.plugins.events import distribution
from tests.plugins.limits.authority import Authority

__all__ = ["bench"]

MOST_BYTES = 12_000_000
"""``max_message_size`` of the server."""


class RabbitServer:
    """A node, which begins to start when it is made, so that other tests run meanwhile."""

    def __init__(self) -> None:
        program = distribution.server("rabbitmq-server", "rabbitmq-server")
        self.port, self._epmd, self._dist = free_port(), free_port(), free_port()
        # Tests run as root, the server as its own user, who cannot enter pytest's folders.
        self._home = Path(tempfile.mkdtemp(prefix="agl-rabbitmq-"))
        self.tls_port, self.authority = free_port(), Authority(self._home)
        files = self.authority.issue()
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.cacertfile": self.authority.file,
            "ssl_options.certfile": files.cert,
            "ssl_options.keyfile": files.key,
            "ssl_options.verify": "verify_none",
            "max_message_size": MOST_BYTES,
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self._home / "rabbitmq.conf").write_text("".join(lines))
        (self._home / "plugins").write_text("[].\n")
        self._user = {} if os.geteuid() else _user()
        if self._user:
            for path in (self._home, *self._home.iterdir()):
                os.chown(path, self._user["user"], self._user["group"])
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            "HOME": str(self._home),
            "RABBITMQ_NODENAME": f"agl{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self._home / "data"),
            "RABBITMQ_LOG_BASE": str(self._home / "log"),
            "RABBITMQ_CONFIG_FILE": str(self._home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._home / "plugins"),
            "RABBITMQ_DIST_PORT": str(self._dist),
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self.begin()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def over_tls(self, query: str = "", password: str = "guest") -> str:
        return f"amqps://guest:{password}@127.0.0.1:{self.tls_port}/{query}"

    def begin(self) -> None:
        with (self._home / "stdout").open("ab") as output:
            self._process = subprocess.Popen(
                [self._program],
                env=self._environment,
                cwd=self._home,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._user,
            )

    def start(self) -> None:
        if self._process is None:
            self.begin()
        self.wait()

    def wait(self) -> None:
        waited = threading.Event()
        for _ in range(1_200):
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError((self._home / "stdout").read_text()[-2_000:])
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                    connection.sendall(b"AMQP\x00\x00\x09\x01")
                    if connection.recv(1):
                        return
            except OSError:
                waited.wait(0.1)
        raise AssertionError("RabbitMQ did not start within 120 s")

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            _end_port_mapper(self._home)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)


def _user() -> dict[str, Any]:
    found = pwd.getpwnam("rabbitmq")
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _end_port_mapper(home: Path) -> None:
    """End epmd, which outlives its node in a session of its own."""
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            mine = b"epmd" in command and str(home).encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if mine:
            os.kill(int(entry.name), signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="session", autouse=True)
def starting() -> Iterator[RabbitServer]:
    server = RabbitServer()
    yield server
    server.remove()


@pytest.fixture
def shared(starting: RabbitServer) -> RabbitServer:
    """The server of all tests of a process, started again where one had stopped it."""
    starting.start()
    return starting


@pytest.fixture
def prefix(request: Any) -> str:
    return f"t{abs(hash(request.node.nodeid))}"
