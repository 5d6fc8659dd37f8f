"""Whole runs over a gateway of their own, which is restarted under them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agl_remote import GatewayControl
from agl_remote._gateway_serve import serve_gateway

import agl_core as agl
from agl_core._builtin import load_plugins
from agl_core.errors import ConfigError
from agl_core.gateway import GatewayOptions, GatewayServer
from agl_core.serving import AttemptKeys
from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore
from tests.core.app.conftest import Bench, speak

KEY = "shared"


class Site:
    """A gateway at one address, over the run's store file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.store = SqliteStore(file)
        self.port = 0

    async def live(self) -> None:
        options = GatewayOptions(port=self.port, secret=KEY, restartable=True)
        self.gateway = GatewayServer(self.store, options)
        self.control = GatewayControl(self.gateway, KEY)
        await self.control.start()
        self.port = int(self.gateway.url.rpartition(":")[2])

    async def restart(self) -> None:
        """From an agent, whose loop is another."""
        restarting = asyncio.run_coroutine_threadsafe(self._restart(), self.loop)
        await asyncio.wrap_future(restarting)

    async def _restart(self) -> None:
        await self.control.stop()
        await self.live()

    async def train(self, bench: Bench, agent: Callable[..., Awaitable[str]], **settings: Any):
        self.loop = asyncio.get_running_loop()
        await self.store.open()
        await self.live()
        try:
            inputs = {"agent": agent}
            url = {"gateway__url": self.gateway.url, "store__path": str(self.file)}
            app = bench.app(inputs, store__name="sqlite", **url, **settings)
            return await app.train()
        finally:
            await self.control.stop()
            await self.store.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("AGL_API_KEY", KEY)
    return Site(tmp_path / "store.db")


async def two(task: agl.Task) -> str:
    await speak("planner", f"plan {task.id}")
    return await speak("writer", f"write {task.id}")


def test_a_run_learns_the_same_over_a_gateway_of_its_own(
    bench: Bench, site: Site, tmp_path: Path
) -> None:
    here = Bench(tmp_path / "here").train()
    over = asyncio.run(site.train(bench, two))
    assert [step.reward for step in over.steps] == [step.reward for step in here.steps]
    assert over.policies["trained"]["sha256_after"] == here.policies["trained"]["sha256_after"]
    assert over.lost == here.lost
    assert over.calls == here.calls


@pytest.mark.parametrize("resume", ["fresh", "replay"])
def test_a_gateway_that_is_restarted_costs_attempts_and_no_step(
    bench: Bench, site: Site, tmp_path: Path, resume: str
) -> None:
    here = Bench(tmp_path / "here").train()
    calls = 0

    async def agent(task: agl.Task) -> str:
        nonlocal calls
        plan = await speak("planner", f"plan {task.id}")
        calls += 1
        if calls == 12:  # in the second step, under several attempts
            await site.restart()
        del plan
        return await speak("writer", f"write {task.id}")

    report = asyncio.run(site.train(bench, agent, rollout__resume=resume, rollout__max_attempts=3))
    assert [step.reward for step in report.steps] == [step.reward for step in here.steps]
    assert report.policies["trained"]["sha256_after"] == here.policies["trained"]["sha256_after"]
    assert report.lost["gateway_restarts"] == 1
    assert report.lost["attempts_retried_engine"] >= 1
    assert ("replayed_calls" in report.lost) == (resume == "replay")
    assert report.calls == here.calls


def test_a_wrong_key_ends_the_run_before_it_begins(
    bench: Bench, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_API_KEY", "another")
    with pytest.raises(ConfigError, match="wrong key"):
        asyncio.run(site.train(bench, two))


async def test_the_shared_key_opens_the_metrics_and_no_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGL_API_KEY", KEY)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    served = serve_gateway(
        MemoryStore(), load_plugins(), host="127.0.0.1", port=0, ready=address.set_result
    )
    serving = asyncio.create_task(served)
    url = await address
    async with aiohttp.ClientSession() as session:

        async def status(path: str, key: str) -> int:
            bearer = {"authorization": f"Bearer {key}"}
            async with session.get(url + path, headers=bearer) as reply:
                return reply.status

        assert await status("/metrics", KEY) == 200
        assert await status("/metrics", AttemptKeys(KEY).client) == 401
        assert await status("/metrics", "") == 401
        assert await status("/v1/models", KEY) == 401
        assert await status("/v1/models", AttemptKeys(KEY).client) == 200
    serving.cancel()
    await asyncio.wait({serving})


def test_an_evaluation_stays_in_this_process(bench: Bench) -> None:
    app = bench.app(gateway__url="http://127.0.0.1:9")
    evaluation = asyncio.run(app.evaluate())
    assert evaluation.score.n == 4


def test_the_backend_host_is_where_the_gateway_asks(bench: Bench, site: Site) -> None:
    with pytest.raises(ConfigError, match=r"Cannot listen on 192\.0\.2\.1"):
        asyncio.run(site.train(bench, two, gateway__backend_host="192.0.2.1"))
