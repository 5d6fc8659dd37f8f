"""Every framework's example trains the agent that it names and no other, as a user starts it.

``AGL_EXAMPLES`` lists those that have to run; without it, all do whose framework is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {
    "01_plain_client": "openai",
    "04_autogen": "autogen_agentchat",
    "05_openai_agents": "agents",
    "06_crewai": "crewai",
    "07_agentscope": "agentscope",
    "08_agent_framework": "agent_framework",
}
"""What each example is written in."""
NO_FRAMEWORK = {"03_verl_cpu", "09_any_language", "10_images"}
"""`tests/trainers/verl` and `tests/e2e` run them."""


def chosen() -> list[str]:
    listed = os.environ.get("AGL_EXAMPLES", "").split()
    return listed or [
        name
        for name, module in FRAMEWORKS.items()
        if importlib.util.find_spec(module) is not None and (ROOT / "examples" / name).is_dir()
    ]


def test_every_example_names_its_framework():
    found = {file.parent.name for file in (ROOT / "examples").glob("[0-9]*/run.toml")}
    assert found <= FRAMEWORKS.keys() | NO_FRAMEWORK
    assert set(chosen()) <= found


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
