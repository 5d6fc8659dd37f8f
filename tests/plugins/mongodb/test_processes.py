"""Several processes on one database."""

from __future__ import annotations

import asyncio
import sys

import pytest
from agl_mongodb import MongoOptions, MongoStore
from agl_stores import copy_store
from agl_testing._store_samples import begin, rollout, succeed

from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, Limits, RolloutQuery, RolloutStatus
from tests.plugins.records.filled import ODD, fill

PATIENCE_S = 60.0
CHILD = """
import asyncio, sys
from agl_mongodb import MongoOptions, MongoStore
from agl_testing._store_samples import begin

async def main():
    options = MongoOptions.model_validate_json(sys.argv[1])
    store = MongoStore(options)
    await store.open()
    claim = await begin(store)
    sys.stdout.write(claim.rollout.id + chr(10))
    sys.stdout.flush()
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def quick(url):
    """Options with which a process that is silent soon counts as crashed.

    The transactions of the stand-in conflict with every sign of life, so it has none here.
    """
    return MongoOptions(url=url, pool_size=1, poll_s=0.05, retry_s=10.0, dead_after_s=2.0)


async def opened(options):
    store = MongoStore(options)
    await store.open()
    return store


async def test_workers_of_two_processes_share_no_rollout(options):
    one, other = await opened(options), await opened(options)
    await one.enqueue([rollout() for _ in range(20)])
    ids: list[str] = []

    async def work(store):
        while len(ids) < 20:  # a worker may find all that is left reserved by others
            ids.extend(each.rollout.id for each in await store.claim("w", limit=3, timeout_s=0.1))

    await asyncio.wait_for(asyncio.gather(*map(work, (one, other) * 3)), PATIENCE_S)
    assert len(ids) == len(set(ids)) == 20
    await one.close()
    await other.close()


async def test_waiting_callers_see_the_writes_of_other_processes(options):
    one, other = await opened(options), await opened(options)
    claiming = asyncio.ensure_future(one.claim("w"))
    await other.enqueue([rollout()])
    (claim,) = await asyncio.wait_for(claiming, PATIENCE_S)
    waiting = asyncio.ensure_future(other.wait([claim.rollout.id]))
    await succeed(one, claim)
    (found,) = await asyncio.wait_for(waiting, PATIENCE_S)
    assert found.status is RolloutStatus.SUCCEEDED
    await one.close()
    await other.close()


async def test_a_store_opened_besides_another_ends_no_attempts(quick):
    one = await opened(quick)
    claim = await begin(one)
    other = await opened(quick)
    (found,) = await other.rollouts(RolloutQuery())
    assert found.attempts == (claim.attempt,)
    await succeed(other, claim)
    await other.close()
    await one.close()


async def test_rollouts_of_a_killed_process_are_queued_again(quick):
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, quick.model_dump_json()), stdout=asyncio.subprocess.PIPE
    )
    rollout_id = (await asyncio.wait_for(child.stdout.readline(), PATIENCE_S)).decode().strip()
    child.kill()
    await child.communicate()
    assert rollout_id

    store = await opened(quick)
    (claim,) = await store.claim("w", timeout_s=0.0)

    assert (claim.rollout.id, claim.attempt.fence) == (rollout_id, 2)
    assert claim.rollout.attempts[0].status is AttemptStatus.LOST
    await store.close()


async def test_a_process_that_died_while_it_opened_is_passed(quick):
    store = await opened(quick)
    owners = store._owners._owners
    await owners.insert_one({"_id": "opening", "by": "st_dead", "beat": 3})
    other = await opened(quick)
    assert {each["_id"] async for each in owners.find()} == {
        store._owners._id,
        other._owners._id,
    }
    await other.close()
    await store.close()


async def test_reserved_rollouts_of_a_crash_can_be_claimed_later(options, monkeypatch):
    store = await opened(options)
    (queued,) = await store.enqueue([rollout(limits=Limits())])
    collections = store._collections
    collections.rollouts.update_one({}, {"$set": {"reserved_until": store.clock.now() + 9.0}})
    assert await store.claim("w", timeout_s=0.0) == []
    collections.rollouts.update_one({}, {"$set": {"reserved_until": store.clock.now() - 0.1}})
    (claim,) = await store.claim("w", timeout_s=0.0)
    assert claim.rollout.id == queued.id
    await store.close()


async def test_records_are_copied_into_a_database_and_back(options, tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await fill(store)
    await store.close()

    there = await copied(SqliteStore(tmp_path / "store.db").reader(), MongoStore(options))
    again = await copied(SqliteStore(tmp_path / "store.db").reader(), MongoStore(options))
    back = await copied(MongoStore(options).reader(), SqliteStore(tmp_path / "back.db"))

    assert [(each.source, each.before) for each in there] == [(3, 0), (7, 0), (5, 0), (8, 0)]
    assert all(each.same for each in (*there, *again, *back))
    assert [each.digest for each in there] == [each.digest for each in back]
    store = SqliteStore(tmp_path / "back.db")
    await store.open()
    claims = await store.claim("w", limit=9, timeout_s=0.0)
    await store.close()
    assert [claim.rollout.id for claim in claims] == [f"ro_{ODD}", "ro_c", "ro_a", "ro_b"]


async def copied(source, target):
    await source.open()
    await target.open()
    try:
        return await copy_store(source, target)
    finally:
        await target.close()
        await source.close()
