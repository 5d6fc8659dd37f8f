"""A runner over a memory store and a gateway that only keeps the books."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from agl_testing.clock import ManualClock

from agl_core.errors import StaleAttemptError
from agl_core.runner import Runner, RunnerOptions
from agl_core.store._memory import MemoryStore
from agl_core.types import Limits, Rollout, Task


class BookkeepingGateway:
    """Knows which attempts are open; serves nothing itself."""

    def __init__(self, url="http://127.0.0.1:9"):
        self.url = url
        self.client_key = "client-key"
        self.opened: list[str] = []
        self.sealed: list[str] = []
        self.refuse = False

    async def open(self, rollout, attempt):
        if self.refuse:
            raise StaleAttemptError("sealed already")
        self.opened.append(attempt.id)

    def attempt_key(self, rollout_id, attempt_id):
        return f"key of {attempt_id}"

    async def flush(self, attempt_id):
        """Every record is written already."""

    async def seal(self, attempt_id):
        self.sealed.append(attempt_id)
        return 0


@pytest.fixture
def gateway():
    return BookkeepingGateway()


@pytest.fixture
def clock():
    """Stands still: no attempt is taken from a runner that a busy machine holds up."""
    return ManualClock(time.time())


@pytest.fixture
async def store(clock):
    memory = MemoryStore(clock=clock)
    await memory.open()
    yield memory
    await memory.close()


@pytest.fixture
def enqueue(store):
    async def enqueue(count=1, *, timeout_s=600.0, **limits):
        """The deadline may be a function of the rollout's number."""
        given = timeout_s if callable(timeout_s) else lambda number: timeout_s
        rollouts = [
            Rollout(
                id=f"rollout_{number:03}",
                task=Task(id=str(number), input=number),
                run_id="run",
                limits=Limits(timeout_s=given(number), **limits),
            )
            for number in range(count)
        ]
        await store.enqueue(rollouts)
        return [rollout.id for rollout in rollouts]

    return enqueue


@pytest.fixture
def serving(store, gateway):
    """``async with serving(agent) as runner``: it runs inside and is stopped on leaving."""

    @contextlib.asynccontextmanager
    async def serving(agent, rewards=None, **options):
        runner = Runner(store, gateway, agent, rewards, RunnerOptions(**options))
        stop = asyncio.Event()
        task = asyncio.create_task(runner.run(stop))
        try:
            yield runner
        finally:
            stop.set()
            await task

    return serving


@pytest.fixture
def run_all(store, serving):
    """Run rollouts to their end and return them with their spans."""

    async def run_all(ids, agent, rewards=None, **options):
        async with serving(agent, rewards, **options) as runner:
            ended = await store.wait(ids, timeout_s=100)
        assert len(ended) == len(ids)
        spans = await store.spans(ids)
        return runner, [rollout.attempt for rollout in ended], spans

    return run_all
