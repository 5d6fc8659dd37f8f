"""``agl runner``: what it hands on, what its workers are given, and how they end."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from agl_remote import _runner_fleet as fleet
from agl_remote import _runner_serve as runner

from agl_core.config.loader import resolve
from agl_core.errors import ConfigError
from agl_core.types import Losses


@pytest.fixture
def served(monkeypatch):
    """The configurations with which a runner was served, in place of serving."""
    configs = []

    async def serve_runner(config, plugins, *, report):
        configs.append(config)
        report(3, {})
        report(7, {"late_span": 2})

    monkeypatch.setattr("agl_remote._runner.serve_runner", serve_runner)
    return configs


def test_addresses_are_taken_and_what_came_of_it_is_told(agl, served, tmp_path):
    (tmp_path / "run.toml").write_text("name = 'x'\n")
    result = agl(
        *("runner", "run.toml", "--set", "rollout.concurrency=4"),
        *("--store", "http://127.0.0.1:1", "--gateway", "http://127.0.0.1:2"),
    )
    assert result.exit_code == 0, result.output
    (config,) = served
    assert (config.store.name, config.store.options["url"]) == ("http", "http://127.0.0.1:1")
    assert config.gateway.url == "http://127.0.0.1:2"
    assert result.stdout.splitlines() == [
        "runner of x: up to 4 attempts in each of 1 process(es)",
        "runner: 7 attempts ended, lost late_span=2",
    ]


def test_several_processes_are_watched_and_told_of(agl, monkeypatch, tmp_path):
    (tmp_path / "run.toml").write_text("name = 'x'\n")
    made = []

    class Watched(fleet.Fleet):
        async def run(self):
            made.append(self)
            self.record.ended, self.record.died = 9, 2
            self.record.losses = Losses(counts={"late_span": 1})

    monkeypatch.setattr(fleet, "Fleet", Watched)
    result = agl("runner", "run.toml", "--processes", "3")
    assert result.exit_code == 0, result.output
    assert "runner: 9 attempts ended, workers replaced: died=2, lost late_span=1" in result.stdout
    assert made[0]._options.processes == 3


@pytest.mark.parametrize(("processes", "loaded"), [("1", True), ("2", False)])
def test_the_supervisor_of_several_processes_loads_no_plugin_file(
    agl, served, monkeypatch, tmp_path, processes, loaded
):
    """The store's address is resolved where the plugins are: in the workers."""
    made = []

    class Watched(fleet.Fleet):
        async def run(self):
            made.append(self)

    monkeypatch.setattr(fleet, "Fleet", Watched)
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n\nPath('loaded').touch()\n\n\nclass Plugin: ...\n"
    )
    (tmp_path / "run.toml").write_text("name = 'x'\nplugins = ['mine.py']\n")
    result = agl("runner", "run.toml", "--store", "http://127.0.0.1:1", "--processes", processes)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "loaded").exists() is loaded
    stores = [config.store.options["url"] for config in served]
    stores += [fleet._arguments[3] for fleet in made]
    assert stores == ["http://127.0.0.1:1"]


@pytest.mark.parametrize("early", [True, False])
async def test_a_worker_that_is_told_to_end_before_it_serves_ends_well(early):
    stop, began = runner._Stop(), asyncio.Event()

    async def serve():
        began.set()
        await asyncio.Event().wait()

    if early:
        stop.ask()
    heeded = asyncio.create_task(stop.heeded(serve()))
    if not early:
        await began.wait()
        stop.ask()
    assert await heeded == 0


def test_what_a_worker_process_is_given_can_be_pickled():
    """On Windows and macOS nothing else reaches it."""
    given = (runner.work, resolve({"name": "x"}).model_dump_json(), False, "key")
    work, text, debug, key = pickle.loads(pickle.dumps(given))
    assert (work, debug, key) == (runner.work, False, "key")
    assert "x" in text


async def test_a_worker_reports_an_address_that_no_store_takes(capfd):
    """With its plugins loaded, in the worker."""
    workers = fleet.Fleet(
        runner.work,
        (resolve({"name": "x"}).model_dump_json(), False, "", "redis://me:pw@h"),
        fleet.FleetOptions(processes=1),
    )
    with pytest.raises(ConfigError, match="Worker 1 cannot work"):
        await workers.run()
    told = capfd.readouterr().err
    assert "'redis://***@h' is not the address of a store" in told


async def test_workers_that_cannot_work_end_the_command():
    """In processes started by the method that all systems have; the reason is each worker's own."""
    config = resolve({"name": "x", "store": {"name": "memory"}})
    workers = fleet.Fleet(
        runner.work, (config.model_dump_json(), False, ""), fleet.FleetOptions(processes=1)
    )
    with pytest.raises(ConfigError, match="Worker 1 cannot work"):
        await workers.run()
