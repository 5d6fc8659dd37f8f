"""Tasks of a data set on a hub that speaks Hugging Face's HTTP protocol."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")

TASKS = b'{"input": 1}\n{"input": 2}\n'
READ = """\
import sys
from agl_core.app import load_plugins
from agl_core.config import TasksConfig
from agl_core.app.parts import make_tasks
from agl_core.errors import ConfigError
try:
    found = make_tasks(None, TasksConfig(train=sys.argv[1]), "train", load_plugins())
    print([task.input for task in found])
except ConfigError as error:
    sys.exit(str(error))
"""


class Hub(BaseHTTPRequestHandler):
    """The far end: a data set ``anna/shop``, and ``anna/secret``, which takes a token."""

    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.tokens.append(self.headers["Authorization"])
        if "/anna/secret" in path and self.headers["Authorization"] != "Bearer hub-token":
            self._answer(401, b'{"error": "Invalid credentials"}')
        elif path.endswith("/resolve/main/tasks.jsonl"):
            self._answer(200, TASKS)
        elif "/tree/" in path:
            entry = {"type": "file", "path": "tasks.jsonl", "size": len(TASKS), "oid": "1" * 40}
            self._answer(200, json.dumps([entry]).encode())
        elif path in ("/api/datasets/anna/shop", "/api/datasets/anna/secret"):
            name = path.removeprefix("/api/datasets/")
            self._answer(200, json.dumps({"id": name, "sha": "0" * 40, "tags": []}).encode())
        else:
            self._answer(404, b"{}")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.tokens = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def read(hub: str, address: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Read tasks in a process of its own: the library reads the hub's address at its import."""
    own = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "", **environ}
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-c", READ, address],
        env={**os.environ, "PYTHONPATH": path, **own},
        capture_output=True,
        text=True,
        check=False,
    )


def test_tasks_come_from_a_data_set(hub: str) -> None:
    done = read(hub, "hf://datasets/anna/shop/tasks.jsonl")
    assert (done.stdout, done.returncode) == ("[1, 2]\n", 0), done.stderr
    assert set(Hub.tokens) == {None}


def test_a_data_set_that_takes_a_token_gets_it_from_the_environment(hub: str) -> None:
    address = "hf://datasets/anna/secret/tasks.jsonl"
    done = read(hub, address, HF_TOKEN="hub-token")
    assert (done.stdout, done.returncode) == ("[1, 2]\n", 0), done.stderr
    refused = read(hub, address)
    assert refused.returncode == 1
    assert f"Data set '{address}' cannot be fetched" in refused.stderr
    assert "401" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_file_that_is_not_there_is_named(hub: str) -> None:
    done = read(hub, "hf://datasets/anna/shop/none.jsonl")
    assert done.returncode == 1
    assert "none.jsonl' cannot be fetched" in done.stderr
    assert "Traceback" not in done.stderr
