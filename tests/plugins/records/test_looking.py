"""Looking at a run executes nothing of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import agl_records
import pytest
from agl_remote._gateway_serve import store_of
from agl_stores import locate_store

from agl_core._builtin import load_plugins
from agl_core.errors import ConfigError
from agl_core.serving import ENV_KEY
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, Report, Rollout, Task

CANARY = """
from pathlib import Path
from agl_core.plugins import hookimpl

Path(__file__).with_suffix(".ran").touch()

@hookimpl
def agl_register_stores(register):
    register("mine", f"{__name__}:make")

@hookimpl
def agl_register_adapters(register):
    register("mine", "agl_core.adapters:TrajectoryAdapter")

def make(config, directory):
    from agl_core.store._sqlite import SqliteStore
    return SqliteStore(directory / "store.db")
"""


class Found:
    """The directory of somebody's run, whose configuration names code."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plugin = directory / "canary.py"
        self.rollout = "ro_1"

    @property
    def ran(self) -> bool:
        return self.plugin.with_suffix(".ran").exists()

    def make(self) -> None:
        self.directory.mkdir()
        self.plugin.write_text(CANARY, encoding="utf-8")
        self.configure()

    def configure(self, **settings: Any) -> None:
        config = {
            "name": self.directory.name,
            "directory": str(self.directory.parent),
            "agent": f"{self.plugin}:agent",
            "agents": ["writer"],
            "model": "m",
            "plugins": [str(self.plugin)],
            "tasks": {"train": f"{self.plugin}:tasks"},
            "rewards": [{"name": f"{self.plugin}:reward"}],
            **settings,
        }
        (self.directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.fixture
async def found(tmp_path: Path) -> Found:
    made = Found(tmp_path / "theirs")
    made.make()
    store = SqliteStore(made.directory / "store.db")
    await store.open()
    await store.enqueue([Rollout(id=made.rollout, task=Task(id="t"), run_id="theirs")])
    (claim,) = await store.claim("w")
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    await store.close()
    return made


LOOKS = [
    ("store", "ls", "DIR"),
    ("store", "show", "DIR", "ro_1"),
    ("store", "gc", "DIR", "--dry-run"),
    ("store", "gc", "DIR"),
    ("store", "export", "DIR"),
    ("trace", "DIR"),
    ("rollouts", "export", "DIR", "--output", "-"),
]


@pytest.mark.parametrize("line", LOOKS, ids=" ".join)
@pytest.mark.parametrize("target", ["", "config.json"])
def test_no_command_that_looks_imports_what_the_run_names(
    agl: Any, found: Found, line: tuple[str, ...], target: str
) -> None:
    """F1: plugin files, agent, tasks and rewards of the run stay unimported."""
    where = str(found.directory / target)
    result = agl(*(where if word == "DIR" else word for word in line))
    assert result.exit_code == 0, result.output
    assert not found.ran


def test_python_that_looks_imports_nothing_either(found: Found, tmp_path: Path) -> None:
    """F1: the export by a function, and the store of a gateway."""
    summary = agl_records.export_rollouts(found.directory, tmp_path / "rows.jsonl")
    assert summary.left_out == {"no_spans": 1}
    asyncio.run(read(store_of(str(found.directory), load_plugins())))
    assert not found.ran
    agl_records.export_rollouts(found.directory, tmp_path / "rows.jsonl", plugins=[found.plugin])
    assert found.ran


async def read(store: Any) -> None:
    await store.open()
    await store.close()


def test_a_store_of_a_plugin_file_is_opened_when_the_user_names_it(agl: Any, found: Found) -> None:
    """F1: and until then the error says with what."""
    found.configure(store={"name": "mine"})
    refused = agl("store", "ls", found.directory)
    assert refused.exit_code == 2
    assert f"--plugin {found.plugin}" in " ".join(refused.stderr.split())
    assert not found.ran
    shown = agl("store", "ls", found.directory, "--plugin", found.plugin)
    assert shown.exit_code == 0, shown.output
    assert "ro_1" in shown.stdout
    assert found.ran


def test_an_adapter_of_a_plugin_file_is_named_too(agl: Any, found: Found) -> None:
    """F1."""
    found.configure(capture={"adapter": "mine"})
    refused = agl("rollouts", "export", found.directory, "--output", "-")
    assert refused.exit_code == 2
    assert "'mine' of adapters" in " ".join(refused.stderr.split())
    with pytest.raises(ConfigError, match="--plugin"):
        agl_records.export_rollouts(found.directory, found.directory / "rows.jsonl")
    assert not found.ran


def test_an_unknown_store_without_plugin_files_is_told_as_before(found: Found) -> None:
    found.configure(store={"name": "mine"}, plugins=[])
    with pytest.raises(ConfigError, match="mine"):
        locate_store(found.directory, load_plugins())


KEY = "the-operators-key"


class Collector(HTTPServer):
    """A server that takes whatever key it is sent, and refuses."""

    def __init__(self) -> None:
        self.connections = 0
        self.keys: list[str | None] = []
        keys = self.keys

        class Refusing(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                keys.append(self.headers["authorization"])
                self.rfile.read(int(self.headers["content-length"]))
                self.send_error(403)

            def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name
                """On no console."""

        super().__init__(("127.0.0.1", 0), Refusing)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)


@pytest.fixture
def collector(found: Found, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Where the run's records are, as its configuration says."""
    monkeypatch.setenv(ENV_KEY, KEY)
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        found.configure(store={"name": "http", "url": server.url})
        yield server
        server.shutdown()
        thread.join()


SENDS = [*LOOKS, ("gateway", "--store", "DIR")]


@pytest.mark.parametrize("line", SENDS, ids=" ".join)
@pytest.mark.parametrize("target", ["", "config.json", "run.json"])
def test_no_command_that_looks_sends_the_key_where_only_the_run_says(
    agl: Any, found: Found, collector: Collector, line: tuple[str, ...], target: str
) -> None:
    """F1, F2: nor does a gateway that is given the run's directory."""
    (found.directory / "run.json").write_bytes((found.directory / "config.json").read_bytes())
    where = str(found.directory / target)
    refused = agl(*(where if word == "DIR" else word for word in line))
    assert refused.exit_code == 2
    said = " ".join(refused.stderr.split())
    assert collector.url in said
    assert collector.connections == 0
    command = [word for word in line if word not in ("DIR", "ro_1") and not word.startswith("-")]
    typed = ["agl", *command, collector.url, *(["ro_1"] if "show" in line else [])]
    assert line[0] == "gateway" or f"in place of the directory: {' '.join(typed)}" in said


def test_python_sends_the_key_to_no_such_server_either(
    found: Found, collector: Collector, tmp_path: Path
) -> None:
    """F1, F2: except with the report of a run, which the caller has run."""
    for target in (found.directory, found.directory / "config.json"):
        with pytest.raises(ConfigError, match="your own configuration file"):
            agl_records.export_rollouts(target, tmp_path / "rows.jsonl")
    assert collector.connections == 0
    report = Report(run_id="mine", directory=str(found.directory))
    with pytest.raises(ConfigError, match="HTTP 403"):
        agl_records.export_rollouts(report, tmp_path / "rows.jsonl")
    assert collector.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize("line", LOOKS, ids=" ".join)
def test_the_key_goes_where_the_user_says(
    agl: Any, found: Found, collector: Collector, line: tuple[str, ...], tmp_path: Path
) -> None:
    """F2: an address, or a configuration of the user's own."""
    own = tmp_path / "run.json"
    own.write_bytes((found.directory / "config.json").read_bytes())
    for where in (collector.url, own):
        refused = agl(*(where if word == "DIR" else word for word in line))
        assert "HTTP 403" in refused.stderr
    assert set(collector.keys) == {f"Bearer {KEY}"}
