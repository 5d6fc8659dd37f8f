"""A process has one environment, and so one run at a time."""

import asyncio
import os
import threading
from pathlib import Path

import httpx
import pytest

import agl_core as agl
from agl_core.app.blocking import only_run
from tests.core.app.conftest import says_yes, two_agents
from tests.core.app.test_facade import TASKS, config, train

__all__ = ["config"]

NAMES = ("OPENAI_BASE_URL", "OPENAI_API_KEY")


def train_one_step(config: dict, agent=two_agents, **more) -> agl.Report:
    config = {**config, "train": {"steps": 1, "tasks_per_step": 2}}
    return agl.train(
        agent, TASKS, agents=["writer"], reward=says_yes, model="bandit", config=config, **more
    )


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OPENAI_API_KEY", "the user's")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    return monkeypatch


@pytest.mark.usefixtures("environment")
def test_a_second_run_is_refused_by_the_name_of_the_first(config: dict, tmp_path: Path) -> None:
    """C1: from an agent's own thread; the first one goes on, the environment is restored."""
    refused: list[agl.ConfigError] = []

    def second(start) -> None:
        try:
            start()
        except agl.ConfigError as error:
            refused.append(error)

    def starts_others(task: agl.Task) -> str:
        if len(refused) < 2:
            other = {**config, "name": "second"}
            second(lambda: train_one_step(other))
            evaluate = {"reward": says_yes, "model": "bandit", "config": other}
            second(lambda: agl.evaluate(two_agents, TASKS, **evaluate))
        with agl.agent_scope("writer"):
            llm = agl.current().llm
            answer = httpx.post(
                f"{llm.base_url}/chat/completions",
                headers={"authorization": f"Bearer {llm.api_key}"},
                json={"model": "any", "messages": [{"role": "user", "content": "x"}]},
                timeout=60,
            )
        return answer.json()["choices"][0]["message"]["content"]

    here = threading.current_thread().name
    report = train_one_step({**config, "name": "first"}, starts_others)
    assert len(report.steps) == 1
    assert len(refused) >= 2
    for error in refused:
        assert "Run 'second' cannot start" in str(error)
        assert "'first', since " in str(error)
        assert f"in thread {here!r}" in str(error)
    assert not (tmp_path / "second").exists()
    assert [os.environ.get(name) for name in NAMES] == [None, "the user's"]


@pytest.mark.usefixtures("environment")
def test_runs_follow_one_another_however_the_first_ends(config: dict) -> None:
    """C1: a run that fails restores the environment and makes room."""

    def crashes(task: agl.Task) -> str:
        raise ZeroDivisionError

    with pytest.raises(agl.AglError):
        train_one_step({**config, "name": "first"}, crashes)
    assert [os.environ.get(name) for name in NAMES] == [None, "the user's"]
    with pytest.raises(agl.ConfigError, match="nobody"):
        train(config, overrides={"agents": ["nobody"]})
    assert len(train_one_step({**config, "name": "second"}).steps) == 1
    assert [os.environ.get(name) for name in NAMES] == [None, "the user's"]


def test_one_that_outlives_its_interrupted_caller_is_still_the_only_one() -> None:
    async def run() -> str:
        return "done"

    with only_run("left behind") as whole:
        coroutine = whole(run())
        with pytest.raises(StopIteration):
            coroutine.send(None)
    with only_run("next"):
        pass

    async def forever() -> None:
        await asyncio.Event().wait()

    loop = asyncio.new_event_loop()
    with only_run("hangs") as whole:
        task = loop.create_task(whole(forever()))
        loop.run_until_complete(asyncio.sleep(0))
    with pytest.raises(agl.ConfigError, match="'hangs', since"), only_run("next"):
        pass
    task.cancel()
    loop.run_until_complete(asyncio.wait({task}))
    loop.close()
    with only_run("next"):
        pass


def test_a_run_that_begins_after_its_caller_was_interrupted_is_cancelled() -> None:
    """C1: in a notebook the coroutine runs in a thread, and may begin when another run has."""
    begun: list[str] = []

    async def run() -> None:
        begun.append("begun")

    with only_run("interrupted") as whole:
        coroutine = whole(run())
    with only_run("next"):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(coroutine)
        with pytest.raises(agl.ConfigError, match="already runs 'next', since"), only_run("third"):
            pass
    assert begun == []
