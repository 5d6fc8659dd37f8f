"""One trainer per store, whatever became of the one before."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agl_testing.clock import ManualClock

import agl_core as agl
from agl_core.app._components import leading, new_instance
from agl_core.errors import LeadHeldError
from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore
from tests.core.app.conftest import Bench, renews_often, two_agents

LEADS = """
import asyncio, sys
from agl_core.app._components import leading
from agl_core.store._sqlite import SqliteStore

async def main(path):
    store = SqliteStore(path)
    await store.open()
    async with leading(store, lease_s=600):
        print("leads", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    await store.close()

asyncio.run(main(sys.argv[1]))
"""


def dead_process() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def trainer(path: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", LEADS, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def named(host: str, pid: int) -> str:
    return f"{host}-{pid}-{new_instance().rsplit('-', 1)[1]}"


@pytest.fixture
async def store():
    store = MemoryStore()
    await store.open()
    yield store
    await store.close()


async def test_the_lead_is_given_back(store: MemoryStore) -> None:
    async with leading(store, lease_s=600):
        with pytest.raises(LeadHeldError, match=f"{socket.gethostname()}-{os.getpid()}-"):
            await store.lead("other", lease_s=1)
    await store.lead("other", lease_s=1)


async def test_a_store_that_is_away_does_not_hold_up_the_end(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agl_core.waits.LEAD_S", 0.01)

    async def away(instance: str, *, lease_s: float) -> None:
        await asyncio.Event().wait()

    async with leading(store, lease_s=600):
        monkeypatch.setattr(store, "lead", away)
    assert "could not be given back" in caplog.text


async def test_a_trainer_that_renews_its_lead_is_alive(
    store: MemoryStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    renews_often(monkeypatch)
    async with leading(store, lease_s=600):
        with pytest.raises(LeadHeldError, match=str(os.getpid())):
            async with leading(store, lease_s=3):
                pass
    waits = [record for record in caplog.records if "waiting" in record.getMessage()]
    assert len(waits) == 1


async def test_an_elder_that_is_not_known_to_be_dead_keeps_its_lease() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await store.open()
    await store.lead(named("elsewhere", dead_process()), lease_s=30)

    async def lapse() -> None:
        with pytest.raises(LeadHeldError):
            await store.lead("hasty", lease_s=1)
        await clock.advance(31)

    lapsing = asyncio.ensure_future(lapse())
    async with leading(store, lease_s=1):
        await lapsing
    await store.close()


async def test_the_lead_of_a_dead_process_is_taken_at_once(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.lead(named(socket.gethostname(), dead_process()), lease_s=600)
    with caplog.at_level(logging.WARNING):
        async with leading(store, lease_s=600):
            with pytest.raises(LeadHeldError, match=str(os.getpid())):
                await store.lead("other", lease_s=1)
    assert "is dead" in caplog.text


@pytest.mark.parametrize("foreign", ["gateway", "a-b", "-", "a-b-c-d", f"x-{10**30}-0"])
async def test_any_name_may_hold_the_lead(store: MemoryStore, foreign: str) -> None:
    await store.lead(foreign, lease_s=0.05)
    async with leading(store, lease_s=0.3):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
async def test_a_killed_trainer_is_succeeded_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    child = trainer(path)
    assert await asyncio.to_thread(child.stdout.readline) == b"leads\n"
    store = SqliteStore(path)
    await store.open()
    with pytest.raises(LeadHeldError, match=f"{socket.gethostname()}-{child.pid}-"):
        await store.lead("other", lease_s=1)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    async with leading(store, lease_s=600):
        pass
    await store.close()


async def test_a_run_leads_its_store(bench: Bench) -> None:
    seen: list[agl.AglError] = []
    bench.directory.mkdir(exist_ok=True)
    path = bench.directory / "shared.db"

    async def agent(task: agl.Task) -> str:
        if not seen:
            store = SqliteStore(path)
            await store.open()
            with pytest.raises(LeadHeldError) as refused:
                await store.lead("other", lease_s=1)
            seen.append(refused.value)
            await store.close()
        return await two_agents(task)

    await bench.app({"agent": agent}, store__name="sqlite", store__path=str(path)).train()
    assert str(os.getpid()) in str(seen[0])
    store = SqliteStore(path)
    await store.open()
    await store.lead("other", lease_s=1)
    await store.close()


async def usurp(store: SqliteStore, holder: str) -> None:
    """Take the lead from a trainer that renews it, maybe just between the two calls."""
    while True:
        await store.lead(holder, lease_s=0)
        try:
            await store.lead("usurper", lease_s=600)
        except LeadHeldError:
            continue
        return


async def test_a_run_that_loses_its_lead_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    renews_often(monkeypatch)
    path = bench.directory / "shared.db"
    taken = asyncio.Event()

    async def agent(task: agl.Task) -> str:
        if not taken.is_set():
            store = SqliteStore(path)
            await store.open()
            try:
                with pytest.raises(LeadHeldError) as refused:
                    await store.lead("usurper", lease_s=600)
                await usurp(store, refused.value.holder)
                taken.set()
            finally:
                await store.close()
        return await two_agents(task)

    app = bench.app(
        {"agent": agent},
        store__name="sqlite",
        store__path=str(path),
        rollout__lease_s=600,
        train__steps=1_000,
    )
    with pytest.raises(LeadHeldError, match="usurper"):
        await app.train()
