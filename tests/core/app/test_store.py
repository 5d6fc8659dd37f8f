"""Which store a process serves or writes to, when it is given what a user types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agl_remote import HttpStore
from agl_remote._gateway_serve import store_of
from agl_stores import store_file

from agl_core._builtin import load_plugins
from agl_core.config.loader import resolve, save_config
from agl_core.errors import ConfigError
from agl_core.interfaces import StoreLifecycle
from agl_core.serving import ENV_KEY
from agl_core.store import SqliteStore
from agl_core.types import Rollout, RolloutQuery, Task

ROLLOUT = Rollout(id="ro_1", task=Task(id="t"), run_id="run")


def a_run(directory: Path, **store: Any) -> Path:
    run = directory / "run"
    run.mkdir()
    save_config(resolve({"directory": str(directory), "store": store}), run)
    return run


async def contents(store: StoreLifecycle) -> list[str]:
    await store.open()
    try:
        return [rollout.id for rollout in await store.rollouts(RolloutQuery())]
    finally:
        await store.close()


@pytest.fixture
async def elsewhere(tmp_path: Path) -> Path:
    """A database with one rollout, outside of its run's directory."""
    file = tmp_path / "all.db"
    store = SqliteStore(file)
    await store.open()
    await store.enqueue([ROLLOUT])
    await store.close()
    return file


async def test_a_gateway_writes_where_the_run_keeps_its_records(
    tmp_path: Path, elsewhere: Path
) -> None:
    run = a_run(tmp_path, path=str(elsewhere))
    for target in (run, run / "config.json", elsewhere):
        assert await contents(store_of(str(target), load_plugins())) == ["ro_1"]
    assert [file.name for file in run.iterdir()] == ["config.json"]


def test_the_records_of_a_run_may_be_on_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F2: the user's own configuration names it; that of a run's directory does not count."""
    monkeypatch.setenv(ENV_KEY, "shared")
    run = a_run(tmp_path, name="http", url="http://127.0.0.1:9")
    own = tmp_path / "run.json"
    own.write_bytes((run / "config.json").read_bytes())
    assert isinstance(store_of(str(own), load_plugins()).inner, HttpStore)
    with pytest.raises(ConfigError, match="your own configuration file"):
        store_of(str(run), load_plugins())


def test_records_that_are_kept_nowhere_are_not_begun_anew(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    with pytest.raises(ConfigError, match="has no store"):
        store_of(str(run), load_plugins())
    assert [file.name for file in run.iterdir()] == ["config.json"]


@pytest.mark.parametrize("target", [".", "new.db"])
async def test_a_store_that_is_not_there_yet_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert await contents(store_of(target, load_plugins())) == []
    assert store_file(target, load_plugins()).is_file()


def test_a_run_is_served_from_the_file_that_it_names(tmp_path: Path, elsewhere: Path) -> None:
    assert store_file(str(a_run(tmp_path, path=str(elsewhere))), load_plugins()) == elsewhere


def test_a_run_that_asks_a_server_is_served_from_its_directory(tmp_path: Path) -> None:
    run = a_run(tmp_path, name="http", url="http://127.0.0.1:9")
    assert store_file(str(run), load_plugins()) == run / "store.db"
