"""The trainer as an object; its engine is a hand-sized one, so no cluster is started."""

from __future__ import annotations

import json
import subprocess
import sys

import agl_verl
import agl_verl._engine
import pytest
from agl_verl import VerlTrainer

import agl_core as agl
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError
from tests.core.app.conftest import says_yes, two_agents
from tests.core.bandit_engine import BanditEngine


@pytest.fixture
def engines(monkeypatch):
    """Engines made where the run would make verl's, with the options that it was given."""
    made = []

    def make(options, setup):
        made.append((options, BanditEngine(setup)))
        return made[-1][1]

    monkeypatch.setattr(agl_verl._engine, "VerlEngine", make)
    return made


def settings(tmp_path, **more):
    return {
        "directory": str(tmp_path / "runs"),
        "agents": ["writer"],
        "model": "bandit",
        "train": {"steps": 2, "tasks_per_step": 2},
        "algorithm": {"group_size": 4, "lr": 1.0},
        "store": "memory",
        "verl": {"trainer": {"n_gpus_per_node": 2}},
        **more,
    }


@pytest.mark.filterwarnings("ignore")  # verl's and Ray's, of their own imports
def test_it_trains_with_the_engine_and_gives_the_report(tmp_path, engines):
    seen = []

    class Watching:
        def started(self, config):
            seen.append(config)

        def step(self, report): ...
        def evaluation(self, evaluation): ...
        def finished(self, report):
            seen.append(report)

    trainer = VerlTrainer(settings(tmp_path), observers=[Watching()])
    tasks = [{"input": n} for n in range(4)]
    report = trainer.train(two_agents, tasks, val_tasks=tasks[:1], reward=says_yes)
    assert isinstance(report, agl.Report)
    assert len(report.steps) == 2
    assert report.evaluations
    [(options, engine)] = engines
    assert options.verl == {"trainer": {"n_gpus_per_node": 2}}
    assert {batch.policy for batch in engine.batches} == {"trained"}
    assert seen == [trainer.config, report]
    assert (seen[0].engine.name, seen[0].algorithm.name) == ("verl", "verl")


@pytest.mark.parametrize(
    ("given", "algorithm"),
    [
        (None, "verl"),
        ({}, "verl"),
        ({"engine": "verl"}, "verl"),
        ({"engine": {"device": "cpu"}, "algorithm": {"lr": 1e-6}}, "verl"),
        ({"algorithm": "grpo"}, "grpo"),
        ({"algorithm": {"name": "rloo", "lr": 1e-6}}, "rloo"),
        (resolve({"name": "mine"}), "verl"),
        (resolve({"algorithm": {"lr": 1e-6}}), "verl"),
        (resolve({"algorithm": "reinforce", "engine": {"device": "cpu"}}), "reinforce"),
    ],
)
def test_what_the_run_leaves_open_is_verl(given, algorithm):
    config = VerlTrainer(given).config
    assert config.engine.name == "verl"
    assert config.algorithm.name == algorithm


def test_a_run_file_keeps_its_paths_and_its_table(tmp_path):
    file = tmp_path / "run.json"
    written = {"agent": "mine.py:run", "verl": {"trainer": {"nnodes": 2}}}
    file.write_text(json.dumps(written), encoding="utf-8")
    config = VerlTrainer(file).config
    assert config.agent == f"{tmp_path / 'mine.py'}:run"
    assert config.engine.options == {"verl": {"trainer": {"nnodes": 2}}}
    assert VerlTrainer(str(file)).config == config


def test_the_mapping_stays_the_callers():
    given = {"engine": {"device": "cpu"}, "verl": {"trainer": {"nnodes": 2}}}
    VerlTrainer(given)
    assert given == {"engine": {"device": "cpu"}, "verl": {"trainer": {"nnodes": 2}}}


@pytest.mark.parametrize("engine", ["torch", {"name": "http", "base_url": "http://127.0.0.1:1/v1"}])
def test_another_engine_is_refused(engine):
    with pytest.raises(ConfigError, match=r"names '(torch|http)': leave engine.name out"):
        VerlTrainer({"engine": engine})


def test_a_wrong_key_is_told_at_once():
    with pytest.raises(ConfigError, match="tarin"):
        VerlTrainer({"tarin": {"steps": 1}})


def test_the_package_has_nothing_else():
    with pytest.raises(AttributeError, match="no attribute 'Trainer'"):
        _ = agl_verl.Trainer


def test_neither_the_package_nor_a_trainer_imports_ray_or_verl():
    code = (
        "import sys, agl_verl\n"
        "assert not {'pydantic', 'agl_core.config'} & set(sys.modules)\n"
        "agl_verl.VerlTrainer({'model': 'm'})\n"
        "assert not {'ray', 'verl', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
