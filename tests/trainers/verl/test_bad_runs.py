"""Whole runs that lack something to learn from; verl's processes are stood for, nothing else is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agl_testing.fake_openai import FakeOpenAI, FakeOptions
from agl_verl import _engine as verl_engine

import agl_core as agl
from agl_core._builtin import load_plugins
from agl_core.app import App, Inputs
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError
from tests.core.app.conftest import speak, two_agents
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)
from tests.trainers.verl.test_trainer import Workers

MODEL = str(Path(__file__).parents[3] / "examples" / "agl_demo" / "model")


class TrainedWorkers(Workers):
    """Workers with weights to keep."""

    def fingerprint(self):
        return [f"after {len(self.updates)} updates"]

    def save_checkpoint(self, *, local_path, global_step):
        exported = Path(local_path) / "huggingface"
        exported.mkdir()
        (exported / "model.safetensors").write_text(str(global_step))


class Replicas:
    """Stands for verl's replicas of one model."""

    def __init__(self, model, address):
        self.model, self.addresses, self.replaced = model, [address], [0]
        self.apart = False

    def repair(self):
        pass

    def sleep(self):
        pass

    def sync(self, version):
        pass

    def close(self):
        pass

    def state(self, index):
        return "alive"


class Verl:
    """What stands for verl, and what it was given."""

    def __init__(self, address):
        self.group = TrainedWorkers(1)
        self.address = address
        self.frozen_started = []

    def workers(self, config, pool, *, reference):
        return self.group

    def pool(self, config):
        return None

    def of_workers(self, config, workers):
        return Replicas(str(config.actor_rollout_ref.model.path), self.address)

    def frozen(self, config, pool, *, model, first):
        self.frozen_started.append(model)
        return Replicas(model, self.address)


class Cluster:
    def __init__(self, *, device, address):
        pass

    def connect(self, config):
        pass

    def close(self):
        pass


@pytest.fixture
def verl(monkeypatch):
    with FakeOpenAI(options=FakeOptions(stable=True)) as server:
        made = Verl(server.base_url.removeprefix("http://").removesuffix("/v1"))
        monkeypatch.setattr(verl_engine, "Replicas", made)
        monkeypatch.setattr(verl_engine, "Cluster", Cluster)
        yield made


def same_for_all(task: agl.Task, output: object, attempt: agl.AttemptRecord) -> float:
    return 1.0


async def silent(task: agl.Task) -> str:
    return "I asked nobody"


async def the_writer_alone(task: agl.Task) -> str:
    return await speak("writer", "write")


async def the_other_alone(task: agl.Task) -> str:
    return await speak("planner", "plan")


def train(tmp_path, agent, *, reward=same_for_all, **algorithm):
    config = resolve(
        {
            "name": "bad",
            "directory": str(tmp_path),
            "agents": ["writer"],
            "model": MODEL,
            "store": {"name": "memory"},
            "engine": {"name": "verl", "device": "cpu"},
            "algorithm": {"name": "grpo", "group_size": 2, **algorithm},
            "train": {"steps": 2, "tasks_per_step": 2},
            "rollout": {"concurrency": 4, "timeout_s": 20.0},
        }
    )
    inputs = Inputs(agent=agent, reward=reward, tasks=[{"input": number} for number in range(2)])
    return asyncio.run(App(config, inputs, plugins=load_plugins()).train())


def test_groups_without_variance_are_counted_and_the_run_goes_on(verl, tmp_path):
    report = train(tmp_path, two_agents)
    assert [step.lost for step in report.steps] == [{"groups_without_signal": 2}] * 2
    assert [step.metrics["optimizer_steps"] for step in report.steps] == [1.0, 1.0]
    assert len(verl.group.updates) == 2
    assert report.policies["trained"]["version"] == 2


def test_more_minibatches_than_groups_are_as_many_as_groups(verl, tmp_path):
    report = train(tmp_path, two_agents, minibatches=16)
    assert [step.metrics["optimizer_steps"] for step in report.steps] == [2.0, 2.0]


def test_a_run_without_a_call_ends_with_the_gateways_diagnosis(verl, tmp_path):
    with pytest.raises(ConfigError, match=r"no call reached the gateway.*agl\.current\(\)\.llm"):
        train(tmp_path, silent)
    assert verl.group.updates == []


def test_a_run_in_which_the_trained_agent_is_silent_says_who_spoke(verl, tmp_path):
    with pytest.raises(ConfigError, match=r"writer.*planner"):
        train(tmp_path, the_other_alone)
    assert verl.group.updates == []


@pytest.mark.parametrize(("agent", "started"), [(the_writer_alone, 0), (two_agents, 1)])
def test_a_frozen_replica_starts_only_if_an_agent_needs_it(verl, tmp_path, agent, started):
    """H2: `agents` alone adds a policy for all others, which may never be asked."""
    train(tmp_path, agent)
    assert len(verl.frozen_started) == started
