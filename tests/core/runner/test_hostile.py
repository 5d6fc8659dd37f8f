"""Agents that do what no agent should do to the process they run in."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agl_core._interrupts import Interrupts
from agl_core.errors import StoreError
from agl_core.types import AttemptStatus, RolloutQuery

ROOT = Path(__file__).parents[3]

FORKS = """
    import asyncio, os, sys
    from agl_core.runner import Runner, RunnerOptions
    from agl_core.store._sqlite import SqliteStore
    from agl_core.types import Rollout, RolloutQuery, Task
    from tests.core.runner.conftest import BookkeepingGateway

    parent = os.getpid()
    statuses = []

    def fork(task):
        child = os.fork()
        if child == 0:
            if task.input:
                raise ValueError("in the child")
            return "child"
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return "parent"

    async def fork_on_the_loop(task):
        return fork(task)

    async def main(path):
        store = SqliteStore(path)
        await store.open()
        for number, agent in enumerate([fork, fork_on_the_loop]):
            rollouts = [
                Rollout(id=f"r{number}{n}", task=Task(id=str(n), input=n), run_id="run")
                for n in range(2)
            ]
            stop = asyncio.Event()
            runner = Runner(store, BookkeepingGateway(), agent, None, RunnerOptions(concurrency=1))
            running = asyncio.create_task(runner.run(stop))
            await store.enqueue(rollouts)
            await store.wait([one.id for one in rollouts])
            stop.set()
            await running
        ended = await store.rollouts(RolloutQuery())
        await store.close()
        outputs = [one.attempt.output for one in ended]
        print(os.getpid() == parent, outputs, statuses, flush=True)

    asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_fork_that_comes_back_neither_answers_nor_stores(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(FORKS), tmp_path / "store.db"]
    ran = await asyncio.to_thread(
        subprocess.run,
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ran.stdout.splitlines() == [f"True {['parent'] * 4} [0, 1, 0, 1]"]


async def test_a_store_is_of_no_use_to_a_fork(store, monkeypatch):
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with pytest.raises(StoreError, match=rf"process {process}.*fork"):
        await store.rollouts(RolloutQuery())
    monkeypatch.undo()
    assert await store.rollouts(RolloutQuery()) == []


async def interrupt(task):
    raise KeyboardInterrupt


async def test_a_keyboard_interrupt_of_an_agent_ends_no_run_of_ours(enqueue, run_all):
    with Interrupts(leaves=False).installed():
        _, (attempt,), _ = await run_all(await enqueue(), interrupt)
    assert attempt.failure.type == "builtins.KeyboardInterrupt"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")
def test_one_that_forces_an_end_is_not_taken_for_the_agents():
    from agl_core._interrupts import may_be_the_users

    ended = []
    interrupts = Interrupts(leaves=False)
    with interrupts.installed(), interrupts.ending(lambda: ended.append(True)):
        assert not may_be_the_users()
        signal.raise_signal(signal.SIGINT)
        assert may_be_the_users()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert ended == [True]
    assert may_be_the_users()


async def test_a_child_process_that_outlives_its_attempt_costs_no_capacity(store, run_all, enqueue):
    started = []

    async def agent(task):
        if task.input == 0:
            command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
            child = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE)
            started.append(child)
            await child.wait()
        return "done"

    ids = await enqueue(3, timeout_s=lambda number: 600.0 if number else 1.0)
    _, attempts, _ = await run_all(ids, agent, concurrency=1)
    statuses = [attempt.status for attempt in attempts]
    assert statuses == [AttemptStatus.TIMED_OUT, *[AttemptStatus.SUCCEEDED] * 2]
    started[0].kill()
    while started[0].returncode is None:  # noqa: ASYNC110  it belongs to the agents' loop
        await asyncio.sleep(0.001)
