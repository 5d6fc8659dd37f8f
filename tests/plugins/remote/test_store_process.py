"""``agl store serve`` as a process of its own: killed in the middle, ended in order, refused."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys

import pytest
from agl_remote import HttpStore
from agl_testing._store_samples import model_call, rollout

from agl_core.errors import LeadHeldError
from agl_core.store._sql import SCHEMA_VERSION
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, Limits, RolloutQuery, RolloutStatus

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are others there")

KEY = "key"


class Process:
    """``agl store serve`` at one port, started again and again."""

    def __init__(self, file):
        self.file = file
        self.port = "0"
        self.command = [sys.executable, "-m", "agl_core.cli"]

    async def start(self, **environment):
        """Returns the line that says where it is; empty when it ended instead."""
        self.process = await asyncio.create_subprocess_exec(
            *(*self.command, "store", "serve", str(self.file), "--port", self.port),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "AGL_API_KEY": KEY, **environment},
        )
        line = (await self.process.stdout.readline()).decode().strip()
        if line:
            self.url = line.split()[-1]
            self.port = self.url.rpartition(":")[2]
        return line

    async def kill(self):
        self.process.kill()
        await self.process.communicate()

    async def end(self, signum=None):
        """Returns the exit status and what it said."""
        if signum is not None:
            self.process.send_signal(signum)
        _, errors = await asyncio.wait_for(self.process.communicate(), 100)
        return self.process.returncode, errors.decode()


@pytest.fixture
async def process(tmp_path):
    process = Process(tmp_path / "store.db")
    line = await process.start()
    assert line == f"Serving store {tmp_path / 'store.db'} at http://127.0.0.1:{process.port}"
    yield process
    if process.process.returncode is None:
        await process.kill()


async def connect(process):
    store = HttpStore(process.url, KEY)
    await store.open()
    return store


class Work:
    """Workers on rollouts until all are done, telling how many writes were acknowledged."""

    def __init__(self, store):
        self.store = store
        self.acknowledged = 0
        self.some = asyncio.Event()
        self.claimed = []
        self.spans = {}

    async def worker(self, name, rollouts):
        while len(self.claimed) < rollouts:
            for claim in await self.store.claim(name, limit=2, timeout_s=0.2):
                self.claimed.append(claim)
                calls = [model_call(claim, sequence=n) for n in range(4)]
                await self.store.add_spans(calls[:2])
                self.told()
                await self.store.heartbeat([claim.attempt.id])
                await self.store.finish(
                    claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=calls[2:]
                )
                self.spans[claim.attempt.id] = calls
                self.told()

    def told(self):
        self.acknowledged += 1
        self.some.set()

    async def until(self, acknowledged):
        while self.acknowledged < acknowledged:
            self.some.clear()
            await self.some.wait()


async def test_a_killed_server_loses_and_doubles_nothing(process):
    store = await connect(process)
    queued = [rollout(limits=Limits(lease_s=600, max_attempts=1)) for _ in range(200)]
    await store.enqueue(queued)
    waiting = asyncio.create_task(store.wait([one.id for one in queued]))
    work = Work(store)
    workers = [asyncio.create_task(work.worker(f"w{n}", len(queued))) for n in range(8)]
    for kill_at in (60, 250):
        await asyncio.wait_for(work.until(kill_at), 100)
        await process.kill()
        assert await process.start()
    ended = await asyncio.wait_for(waiting, 100)
    await asyncio.gather(*workers)
    assert [one.id for one in ended] == [one.id for one in queued]
    assert {one.status for one in ended} == {RolloutStatus.SUCCEEDED}
    assert {len(one.attempts) for one in ended} == {1}
    assert {one.attempts[0].id for one in ended} == set(work.spans)
    assert len(work.claimed) == len(queued)
    found = {}
    for span in await store.spans([one.id for one in queued]):
        found.setdefault(span.attempt_id, []).append(span)
    assert found == work.spans
    await store.close()


async def test_one_that_a_shell_put_aside_ends_in_order(process):
    """Such a program ignores SIGINT: ``agl store serve &`` in a script."""
    await process.kill()
    ignore = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    process.command = [sys.executable, "-c", f"{ignore}; from agl_core.cli import main; main()"]
    await process.start()
    store = await connect(process)
    await store.enqueue([rollout()])
    held = [asyncio.create_task(store.claim("w")) for _ in range(2)]
    await next(asyncio.as_completed(held))
    status, said = await process.end(signal.SIGTERM)
    assert (status, "Traceback" in said) == (130, False)
    await store.close()
    await asyncio.gather(*held, return_exceptions=True)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_in_order(process, signum):
    store = await connect(process)
    (queued,) = await store.enqueue([rollout()])
    held = [
        asyncio.create_task(store.wait([queued.id])),
        asyncio.create_task(store.claim("w")),
        asyncio.create_task(store.claim("w")),
    ]
    (claim,) = await next(asyncio.as_completed(held))
    status, said = await process.end(signum)
    assert status == 130
    assert "Traceback" not in said
    assert sorted(path.name for path in process.file.parent.iterdir()) == [
        "store.db",
        "store.db-owners",
    ]
    await process.start()
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    assert (await asyncio.wait_for(held[0], 100))[0].status is RolloutStatus.SUCCEEDED
    await store.close()
    await asyncio.gather(*held, return_exceptions=True)
    await process.end(signum)
    local = SqliteStore(process.file)
    await local.open()
    assert len(await local.rollouts(RolloutQuery())) == 1
    await local.close()


async def test_a_dead_runner_is_told_from_a_live_one_across_a_restart(process):
    store = await connect(process)
    short = Limits(lease_s=1.0, max_attempts=2)
    await store.enqueue([rollout(limits=short), rollout(limits=Limits(lease_s=600))])
    dead, living = await store.claim("w", limit=2)
    await process.kill()
    await process.start()
    (again,) = await store.claim("w2", timeout_s=100)
    assert (again.rollout.id, again.attempt.fence) == (dead.rollout.id, 2)
    assert await store.heartbeat([dead.attempt.id, living.attempt.id]) == [dead.attempt.id]
    await store.finish(living.attempt.id, status=AttemptStatus.SUCCEEDED)
    await store.close()


async def test_one_trainer_leads_also_across_a_restart(process):
    first, second = await connect(process), await connect(process)
    await first.lead("first", lease_s=600)
    await process.kill()
    await process.start()
    with pytest.raises(LeadHeldError, match="first"):
        await second.lead("second", lease_s=60)
    await first.lead("first", lease_s=0)
    await second.lead("second", lease_s=60)
    await first.close()
    await second.close()


async def test_what_cannot_be_served_is_said_in_one_line(process, tmp_path):
    newer = tmp_path / "newer.db"
    local = SqliteStore(newer)
    await local.open()
    await local.close()
    connection = sqlite3.connect(newer)
    with connection:
        connection.execute("UPDATE schema SET version = ?", (SCHEMA_VERSION + 1,))
    connection.close()
    taken, unknown, keyless = (Process(tmp_path / name) for name in ("a.db", "newer.db", "b.db"))
    taken.port = process.port
    started = [taken.start(), unknown.start(), keyless.start(AGL_API_KEY="")]
    assert await asyncio.gather(*started) == ["", "", ""]
    for one, status, message in (
        (taken, 2, f"Cannot listen on 127.0.0.1:{process.port}"),
        (unknown, 1, f"schema {SCHEMA_VERSION + 1}"),
        (keyless, 2, "secrets.token_urlsafe"),
    ):
        found, said = await one.end()
        assert found == status
        assert message in said
        assert len(said.strip().splitlines()) == 1
    assert not taken.file.exists()
    assert not keyless.file.exists()
