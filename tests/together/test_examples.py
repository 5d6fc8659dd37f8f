"""Every framework's example trains the agent that it names and no other, as a user starts it.

``AGL_EXAMPLES`` lists those that have to run; without it, all do whose framework is installed.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_FRAMEWORK = {"03_verl_cpu", "09_any_language", "10_images"}
"""`tests/trainers/verl` and `tests/e2e` run them."""


def chosen() -> list[str]:
    listed = os.environ.get("AGL_EXAMPLES", "").split()
    folders = sorted(file.parent for file in (ROOT / "examples").glob("[0-9]*/run.toml"))
    return listed or [
        folder.name
        for folder in folders
        if folder.name not in NO_FRAMEWORK and all(map(importlib.util.find_spec, needs(folder)))
    ]


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
