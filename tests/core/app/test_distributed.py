"""Trainer, gateway and runners that meet in nothing but a store and HTTP, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from agl_remote._gateway_serve import serve_gateway, store_of
from agl_remote._runner import serve_runner

from agl_core._builtin import load_plugins
from agl_core.app import App
from agl_core.config import RunConfig
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError
from agl_core.serving import ENV_KEY
from agl_core.types import AttemptStatus, RolloutQuery

HAND_SIZED = Path(__file__).parents[2] / "e2e" / "hand_sized.py"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_KEY, "shared")


def config_of(directory: Path, *overrides: str) -> RunConfig:
    return resolve(
        {
            "name": "run",
            "directory": str(directory),
            "agent": f"{HAND_SIZED}:run_agent",
            "agents": ["writer"],
            "model": "bandit",
            "plugins": [str(HAND_SIZED)],
            "tasks": {"train": f"{HAND_SIZED}:tasks", "val": f"{HAND_SIZED}:tasks"},
            "rewards": [{"name": f"{HAND_SIZED}:reward"}],
            "engine": {"name": "bandit"},
            "algorithm": {"name": "reinforce", "lr": 1.0, "group_size": 4},
            "train": {"steps": 3, "tasks_per_step": 2},
            "rollout": {"timeout_s": 600},
        },
        overrides,
    )


class World:
    """A gateway, and as many runners as are started; trainers come and go."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = directory / "run" / "store.db"
        self.url = ""
        self.reports: list[tuple[int, Mapping[str, int]]] = []

    def config(self, *overrides: str) -> RunConfig:
        elsewhere = ["rollout.local=false", f"gateway.url={self.url}"]
        return config_of(self.directory, *elsewhere, *overrides)

    @contextlib.asynccontextmanager
    async def gateway(self):
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.database.parent.mkdir(parents=True)
        work = serve_gateway(
            store_of(str(self.database), load_plugins()),
            load_plugins(),
            host="127.0.0.1",
            port=0,
            ready=ready.set_result,
        )
        async with running(work):
            self.url = await ready
            yield

    def runner(self, *overrides: str, plugins: Any = None):
        config = self.config(*overrides)
        loaded = load_plugins(config.plugins)
        return running(
            serve_runner(config, loaded, report=lambda *counts: self.reports.append(counts))
        )

    async def train(self, *overrides: str):
        return await App(self.config(*overrides)).train()


@contextlib.asynccontextmanager
async def running(work):
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def world(tmp_path: Path):
    made = World(tmp_path / "apart")
    async with made.gateway():
        yield made


async def test_a_run_in_pieces_ends_as_one_in_a_single_process(world: World, tmp_path: Path):
    whole = await App(config_of(tmp_path / "whole")).train()
    async with world.runner("rollout.concurrency=2"), world.runner("rollout.concurrency=2"):
        apart = await world.train()
    assert [step.reward for step in apart.steps] == [step.reward for step in whole.steps]
    assert [found.score for found in apart.evaluations] == [
        found.score for found in whole.evaluations
    ]
    end = "sha256_after"
    assert apart.policies["trained"][end] == whole.policies["trained"][end]
    assert apart.policies["trained"]["sha256_before"] != apart.policies["trained"][end]
    assert apart.lost == whole.lost
    assert apart.calls == whole.calls == 48
    assert world.reports[-1][0] + world.reports[-2][0] >= 24


async def test_runners_may_come_before_the_trainer_and_outlive_it(world: World):
    async with world.runner():
        first = await world.train("train.steps=1")
        second = await world.train("train.steps=2", "train.resume=true")
    assert (len(first.steps), len(second.steps)) == (1, 2)


async def test_runners_may_come_late_and_serve_steps_ahead(world: World):
    async with running(world.train("train.max_staleness=1")) as training:
        store = store_of(str(world.database), load_plugins())
        await store.open()
        while not await store.rollouts(RolloutQuery()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await store.close()
        async with world.runner():
            report = await training
    assert [step.calls for step in report.steps] == [16, 16, 16]
    assert all(step.metrics["staleness"] <= 1 for step in report.steps)


async def test_what_a_runner_loses_and_retries_is_in_the_trainers_report(world: World):
    """One that is stopped hands its attempts back; another one takes them."""
    async with running(world.train("train.steps=1", "tasks.val=null")) as training:
        store = store_of(str(world.database), load_plugins())
        await store.open()
        async with world.runner(f"agent={HAND_SIZED}:hang", "rollout.concurrency=3"):
            while len([r for r in await store.rollouts(RolloutQuery()) if r.attempts]) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with world.runner(f"agent={HAND_SIZED}:long_answer"):
            report = await training
        rollouts = await store.rollouts(RolloutQuery())
        await store.close()
    retried = [rollout for rollout in rollouts if len(rollout.attempts) == 2]
    assert {rollout.attempts[0].status for rollout in retried} == {AttemptStatus.LOST}
    assert [rollout.attempts[-1].fence for rollout in retried] == [2, 2, 2]
    assert report.lost["attempts_retried_lost"] == 3
    assert report.lost["truncated_value"] == 8


async def test_a_runner_says_what_it_lacks(tmp_path: Path):
    config = config_of(tmp_path)
    with pytest.raises(ConfigError, match=r"gateway\.url is not set"):
        await serve_runner(config, load_plugins(config.plugins), report=lambda *counts: None)


async def test_a_runner_without_the_key_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KEY, "another")
    with pytest.raises(ConfigError, match="wrong key"):
        await serve_runner(world.config(), load_plugins([HAND_SIZED]), report=lambda *counts: None)
    monkeypatch.delenv(ENV_KEY)
    with pytest.raises(ConfigError, match="AGL_API_KEY is not set"):
        await serve_runner(world.config(), load_plugins([HAND_SIZED]), report=lambda *counts: None)


async def test_a_runner_of_another_version_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agl_remote._peer.PROTOCOL", 999)
    with pytest.raises(ConfigError, match="the same version of agl-core on both sides"):
        await serve_runner(world.config(), load_plugins([HAND_SIZED]), report=lambda *counts: None)


_CONVERSATION = """
def reward(task, output, attempt):
    agents = [(call.agent, call.messages[0]["content"]) for call in attempt.calls]
    assert agents == [("planner", f"plan {task.input}"), ("writer", f"write {task.input}")]
    assert attempt.calls[1].answer == output
    return float(output == "yes")
"""


async def test_rewards_of_other_processes_see_the_calls(world: World, tmp_path: Path):
    """G14: a runner reads what the gateway, another process, has flushed to the store."""
    file = tmp_path / "judge.py"
    file.write_text(_CONVERSATION, encoding="utf-8")
    reward = f"rewards.0.name={file}:reward"
    async with world.runner(reward), world.runner(reward):
        report = await world.train(reward, "train.steps=1")
    assert report.steps[0].failures == {}
    assert report.calls == 16
    assert [found.failed for found in report.evaluations] == [{}, {}]
