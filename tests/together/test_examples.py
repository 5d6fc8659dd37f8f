"""Every framework's example trains the agent that it names and no other, as a user starts it.

``AGL_EXAMPLES`` lists those that have to run; without it, all do whose framework is installed.
"""

from __future__ import annotations

import ast
import configparser
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_FRAMEWORK = {"03_verl_cpu", "09_any_language", "10_images", "11_prompts", "12_werewolf"}
"""Others run them: `tests/trainers/verl`, `tests/e2e`, `test_prompts_example.py`, `tests/programs`."""
NO_FRAMEWORK |= {"13_sql", "14_calculator", "16_retrieval", "17_agentflow", "18_two_learners"}


def examples() -> set[str]:
    return {file.parent.name for file in (ROOT / "examples").glob("[0-9]*/run.toml")}


def chosen() -> list[str]:
    listed = os.environ.get("AGL_EXAMPLES", "").split()
    if unknown := set(listed) - examples():
        raise ValueError(f"AGL_EXAMPLES lists {sorted(unknown)}: no such folders in examples")
    return listed or [
        name for name in sorted(examples() - NO_FRAMEWORK) if is_installed(ROOT / "examples" / name)
    ]


def is_installed(folder: Path) -> bool:
    """Whether every package that an example's program imports is installed."""
    missing = [name for name in sorted(needs(folder)) if importlib.util.find_spec(name) is None]
    for name in missing:
        if name.startswith("agl_") or name in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{folder.name} imports {name}, which is no framework")
    return not missing


def needs(folder: Path) -> set[str]:
    """The packages that an example's program imports."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in folder.glob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    own = {file.stem for file in folder.glob("*.py")}
    return {name.partition(".")[0] for name in names} - own


def test_what_an_example_needs_is_read_from_its_program(tmp_path):
    (tmp_path / "agent.py").write_text("import json\nfrom some_framework.agents import Agent\n")
    (tmp_path / "train.py").write_text("from agent import run\n")
    assert needs(tmp_path) == {"json", "some_framework"}


def test_every_example_runs_in_some_environment_of_tox():
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini", encoding="utf-8")
    lines = [
        line for section in config.values() for line in section.get("set_env", "").splitlines()
    ]
    listed = [line.partition("=")[2].split() for line in lines if line.startswith("AGL_EXAMPLES =")]
    assert set(itertools.chain(*listed)) == examples() - NO_FRAMEWORK
    assert examples() >= NO_FRAMEWORK
    assert set(chosen()) <= examples() - NO_FRAMEWORK


def test_a_listed_example_without_a_folder_is_an_error(monkeypatch):
    monkeypatch.setenv("AGL_EXAMPLES", "01_plain_client 99_gone")
    with pytest.raises(ValueError, match="99_gone"):
        chosen()


@pytest.mark.parametrize("module", ["agl_gone", "winreg"])
def test_an_import_that_no_framework_lacks_is_an_error(tmp_path, monkeypatch, module):
    (tmp_path / "agent.py").write_text(f"import {module}\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=module):
        is_installed(tmp_path)


def test_an_example_whose_framework_is_not_installed_does_not_run(tmp_path):
    (tmp_path / "agent.py").write_text("import json\nfrom some_framework.agents import Agent\n")
    assert not is_installed(tmp_path)


@pytest.mark.parametrize("name", chosen())
def test_two_steps_train_the_named_agent_alone(name, tmp_path):
    folder, figures = ROOT / "examples" / name, tmp_path / "figures.json"
    changes = {
        "directory": str(tmp_path / "runs"),
        "name": "run",
        "tasks.val": "null",
        "train.steps": "2",
        "train.tasks_per_step": "4",
        "algorithm.group_size": "4",
    }
    settings = [part for change in changes.items() for part in ("--set", "=".join(change))]
    agl = [sys.executable, "-m", "agl_core.cli"]
    done = subprocess.run(
        [*agl, "train", str(folder / "run.toml"), "--json", str(figures), *settings],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(figures.read_text(encoding="utf-8"))
    assert len(report["steps"]) == 2
    assert report["calls"] > 0
    trained = [one for one in report["policies"].values() if one["trainable"]]
    frozen = [one for one in report["policies"].values() if not one["trainable"]]
    assert [one["sha256_before"] != one["sha256_after"] for one in trained] == [True]
    assert [one["sha256_before"] == one["sha256_after"] for one in frozen] == [True]
    spoke = agents_of(tmp_path / "runs" / "run", agl)
    assert len(spoke) > 1, spoke


def agents_of(run: Path, agl: list[str]) -> set[str]:
    """Whose calls the gateway recorded."""
    out = run / "calls.json"
    traced = [*agl, "trace", str(run), "--limit", "0", "--json", str(out)]
    subprocess.run(traced, check=True, capture_output=True)
    found = json.loads(out.read_text(encoding="utf-8"))
    return set(called(found))


def called(found: object) -> list[str]:
    if isinstance(found, dict):
        own = [found["agent"]] if found.get("policy") else []
        return own + [name for value in found.values() for name in called(value)]
    if isinstance(found, list):
        return [name for value in found for name in called(value)]
    return []
