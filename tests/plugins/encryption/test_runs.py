"""Runs and commands with encrypted stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agl_encryption._keys import id_of
from agl_encryption._layer import EncryptedStore
from agl_stores import locate_store, make_store_at

from agl_core._builtin import load_plugins
from agl_core.errors import ConfigError
from agl_core.store import SqliteStore
from agl_core.types import Score
from tests.core.app.conftest import Bench, speak
from tests.plugins.encryption.keyring import OLD, encrypted
from tests.plugins.encryption.test_stored import fill

QUESTION = "planted-question"


async def agent(task: Any) -> str:
    await speak("writer", f"write {task.input}")
    return f"planted-result of {task.input}"


def reward(task: Any, output: Any, attempt: Any) -> Score:
    return Score(1.0, "planted-reason")


INPUTS = {"agent": agent, "reward": reward, "tasks": [{"input": QUESTION}] * 2}


def test_a_run_without_a_key_writes_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.directory = tmp_path / "runs"
    bench.sections = {"encryption": {}, "store": {}}
    with pytest.raises(ConfigError, match=r"There is no encryption key: .*agl store key"):
        bench.train(INPUTS)
    assert not bench.directory.exists()


@pytest.mark.parametrize("section", [{}, {"encryption": {}}])
def test_a_run_with_a_key_is_encrypted(
    bench: Bench, tmp_path: Path, monkeypatch: Any, agl: Any, section: dict[str, Any]
) -> None:
    monkeypatch.setenv("AGL_ENCRYPTION_KEY", OLD.hex())
    bench.sections = {"store": {}, **section}
    report = bench.train(INPUTS)
    assert report.steps[-1].reward == 1.0
    run = tmp_path / "bench"
    raw = b"".join(file.read_bytes() for file in run.glob("store.db*"))
    for word in (QUESTION, "planted-result", "planted-reason", f"write {QUESTION}"):
        assert word.encode() not in raw
    assert OLD.hex() not in (run / "config.json").read_text()
    assert QUESTION in agl("store", "show", run, a_rollout(agl, run)).output
    monkeypatch.delenv("AGL_ENCRYPTION_KEY")
    shown = agl("store", "show", run, a_rollout(agl, run))
    assert shown.exit_code == 0, shown.output
    assert QUESTION not in shown.output
    assert f"[encrypted with key {id_of(OLD)}]" in shown.output
    refused = agl("rollouts", "export", run, "--output", "out.jsonl")
    assert refused.exit_code != 0
    assert "set AGL_ENCRYPTION_KEY" in refused.output
    assert not (tmp_path / "out.jsonl").exists()


def a_rollout(agl: Any, run: Path) -> str:
    return json.loads(agl("store", "ls", run, "--json", "-").output)["rollouts"][0]["id"]


async def test_options_of_a_found_run_are_not_used(tmp_path: Path) -> None:
    """A run's directory names no code and no files of keys."""
    code = tmp_path / "canary.py"
    code.write_text("from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n")
    run = tmp_path / "run"
    config = {"name": "run", "directory": str(tmp_path), "agents": ["a"], "model": "m"}
    store = SqliteStore(run / "store.db")
    await store.open()
    await store.close()
    text = json.dumps({**config, "encryption": {"provider": f"{code}:fetch"}})
    for file in (run / "config.json", tmp_path / "given.json"):
        file.write_text(text)
    plugins = load_plugins()
    assert isinstance(make_store_at(locate_store(run, plugins), plugins), EncryptedStore)
    assert not code.with_suffix(".ran").exists()
    with pytest.raises(ConfigError, match="canary"):
        make_store_at(locate_store(tmp_path / "given.json", plugins), plugins)
    assert code.with_suffix(".ran").exists()


@pytest.mark.parametrize("key", [None, OLD.hex()])
async def test_the_dashboard_keeps_no_words_of_an_encrypted_store(
    tmp_path: Path, monkeypatch: Any, key: str | None
) -> None:
    sources = pytest.importorskip("agl_dashboard._sources", exc_type=ImportError)
    store = encrypted(SqliteStore(tmp_path / "store.db"), {id_of(OLD): OLD})
    await store.open()
    await fill(store)
    await store.close()
    if key is not None:
        monkeypatch.setenv("AGL_ENCRYPTION_KEY", key)
    index = tmp_path / "index"
    run = sources.ShownRun("run", str(tmp_path / "store.db"), load_plugins(), index)
    await run.look()
    assert run.readable, run.problem
    assert index.exists() == (key is None)
    await run.close()
