"""The distribution of a third party, installed: found, listed, run, and trained with."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
from parley import Speaker

import agl_core

HERE = Path(__file__).parent

AGENT = """
import agl_core as agl
import httpx
from parley import Speaker

def run_agent(task):
    llm = agl.current().llm
    with agl.agent_scope("writer"):
        key = {"authorization": f"Bearer {llm.api_key}"}
        found = httpx.get(f"{llm.base_url}/whoami", headers=key).raise_for_status().json()
    assert (found["rollout"], found["agent"]) == (agl.current().rollout.id, "writer"), found
    speakers = (Speaker(name, llm.model, llm.base_url, llm.api_key) for name in ("planner", "writer"))
    text = task.input
    for speaker in speakers:
        text = speaker.say(text)
    return text
"""
RUN = {
    "name": "run",
    "agent": "agent.py:run_agent",
    "agents": ["writer"],
    "model": "parrot",
    "tasks": {"train": "tasks.jsonl"},
    "rewards": [{"name": "concise", "words": 1}],
    "store": {"name": "snapshot", "path": "records.bin"},
    "engine": {"name": "phrases", "words": ["yes", "no", "maybe"], "max_words": 2},
    "algorithm": {"name": "rank", "lr": 4.0, "group_size": 8, "weighting": "attempt"},
    "train": {"steps": 15, "tasks_per_step": 2},
}


@pytest.fixture
def agl(tmp_path):
    """Run ``agl`` in a folder and an interpreter of its own."""

    def run(*arguments, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "agl_core.cli", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def row(listing, name):
    return next(line for line in listing.splitlines() if line.split()[:1] == [name])


def test_it_is_listed_with_version_and_state(agl):
    listing = agl("plugins")
    version = metadata.version("parley-agents")
    assert f"parley-agents {version}" in row(listing, "parley")
    assert " ok " in row(listing, "parley")
    for offer in (
        "integrations: parley",
        "rewards: concise",
        "algorithms: rank",
        "stores: snapshot",
        "engines: phrases",
        "routes: GET /whoami",
        "commands: parley",
    ):
        assert offer in listing


def test_its_command_runs(agl):
    assert "parley" in agl("--help")
    assert agl("parley", "0", "2", "-1").splitlines() == ["0  +0.000", "2  +1.000", "-1  -1.000"]


def test_a_run_trains_with_its_reward_and_algorithm_while_its_integration_names_the_agents(
    agl, tmp_path
):
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    rows = [json.dumps({"input": f"question {n}", "expected": "yes"}) for n in range(4)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps(RUN), encoding="utf-8")
    agl("train", "run.json", "--json", "report.json")
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    rewards = [step["reward"] for step in report["steps"]]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2
    trained, frozen = report["policies"]["trained"], report["policies"]["frozen"]
    assert trained["sha256_before"] != trained["sha256_after"]
    assert frozen["sha256_before"] == frozen["sha256_after"]
    assert report["calls"] == 15 * 2 * 8 * 2
    assert not report["lost"].keys() - {"groups_without_signal"}
    stored = json.loads((tmp_path / "agl_runs" / "run" / "config.json").read_text(encoding="utf-8"))
    assert stored["store"] == {"name": "snapshot", "path": str(tmp_path / "records.bin")}
    counts = agl("store", "ls", "agl_runs/run")
    assert str(15 * 2 * 8) in counts
    assert "succeeded" in counts
    assert not list((tmp_path / "agl_runs").rglob("*.db"))


def test_options_of_its_store_are_checked(agl, tmp_path):
    for option, reason in (
        ("store.pth=x", "did you mean 'store.path'"),
        ("store.retention=all", "store.retention = 'all'"),
        ("rollout.local=false", "'snapshot' is open in one process only"),
    ):
        (tmp_path / "run.json").write_text(json.dumps(RUN), encoding="utf-8")
        (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
        assert reason in agl("train", "run.json", "--set", option, code=2)


def test_a_run_without_the_plugin_says_what_is_missing(agl, tmp_path, monkeypatch):
    (tmp_path / "agent.py").write_text(AGENT, encoding="utf-8")
    (tmp_path / "run.json").write_text(json.dumps(RUN), encoding="utf-8")
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", "parley")
    assert "disabled" in row(agl("plugins"), "parley")
    assert "Unknown store 'snapshot'" in agl("train", "run.json", code=2)


def test_the_integration_attaches_with_all_others():
    before = list(Speaker.around)
    attachment = agl_core.attach()
    assert len(Speaker.around) == len(before) + 1
    attachment.detach()
    assert Speaker.around == before


def test_it_uses_public_names_only():
    used = 0
    for path in sorted((HERE / "parley_agl").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert not any(each.name.startswith("agl_core") for each in node.names)
            if not isinstance(node, ast.ImportFrom) or not node.module.startswith("agl_core"):
                continue
            assert not any(part.startswith("_") for part in node.module.split("."))
            file = Path(import_module(node.module).__file__)
            public = re.findall(r" import (\w+) as \1$", file.read_text("utf-8"), re.MULTILINE)
            for each in node.names:
                used += 1
                assert not each.name.startswith("_")
                of_a_face = each.name in public or each.name == "semconv"
                assert of_a_face or file.name != "__init__.py"
    assert used
