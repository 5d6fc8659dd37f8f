"""Several processes on one database, and processes that are killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap

import psycopg
import pytest
from agl_postgres import PostgresStore
from agl_testing._store_samples import begin, rollout, short, span, succeed

from agl_core.errors import StaleAttemptError, StoreError
from agl_core.types import Limits, RolloutQuery, RolloutStatus

PATIENCE_S = 60
START = """
    import asyncio, sys
    from agl_postgres import PostgresOptions, PostgresStore
    from agl_testing._store_samples import begin, rollout, span, succeed
    options = PostgresOptions(url=sys.argv[1], pool_size=1, pool_max_overflow=3)
    store = PostgresStore(options)
"""
WORKS = """
    async def main():
        await store.open()
        print("open", flush=True)
        while claims := await store.claim(sys.argv[2], limit=2, timeout_s=1):
            for claim in claims:
                await store.add_spans([span(claim)])
                await store.heartbeat([claim.attempt.id])
                await succeed(store, claim, [span(claim)])
        await store.close()
    asyncio.run(main())
"""
ENQUEUES = """
    async def main():
        await store.open()
        while True:
            sent = await store.enqueue([rollout() for _ in range(3)])
            print(*(one.id for one in sent), flush=True)
    asyncio.run(main())
"""
DIES = """
    async def main():
        await store.open()
        claim = await begin(store)
        await store.add_spans([span(claim)])
        print(claim.rollout.id, claim.attempt.id, flush=True)
        sys.stdin.read()
    asyncio.run(main())
"""


def python(program, *arguments):
    code = textwrap.dedent(START) + textwrap.dedent(program)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def end(process):
    process.kill()
    process.communicate()


@pytest.fixture
async def stores(options):
    """Two stores on one database, which only notifications connect."""
    pair = [PostgresStore(options), PostgresStore(options)]
    for store in pair:
        await store.open()
    yield pair
    for store in pair:
        await store.close()


async def test_workers_of_several_processes_share_the_work(options):
    store = PostgresStore(options)
    await store.open()
    ids = [one.id for one in await store.enqueue([rollout() for _ in range(60)])]
    workers = [python(WORKS, options.url, f"w{n}") for n in range(3)]
    final = await asyncio.wait_for(store.wait(ids), PATIENCE_S)
    assert [one.id for one in final] == ids
    assert {one.status for one in final} == {RolloutStatus.SUCCEEDED}
    assert all(len(one.attempts) == 1 for one in final)
    assert len(await store.spans(ids)) == 120
    for worker in workers:
        assert await asyncio.to_thread(worker.wait, PATIENCE_S) == 0
        worker.communicate()
    await store.close()


async def test_work_and_results_of_another_process_wake_who_waits(stores):
    one, other = stores
    waiting = [asyncio.ensure_future(one.claim(f"w{n}")) for n in range(2)]
    await asyncio.wait(waiting, timeout=0.05)
    await other.enqueue([rollout(), rollout()])
    claims = [claim for (claim,) in await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)]
    ids = [claim.rollout.id for claim in claims]
    final = asyncio.ensure_future(other.wait(ids))
    await asyncio.wait([final], timeout=0.05)
    for claim in claims:
        await succeed(one, claim)
    assert [each.id for each in await asyncio.wait_for(final, PATIENCE_S)] == ids


async def test_an_end_in_one_process_is_seen_in_the_others(stores):
    one, other = stores
    claim = await begin(one)
    await other.cancel([claim.rollout.id], reason="elsewhere")
    assert (await one.add_spans([span(claim)])).late == 1
    assert await one.heartbeat([claim.attempt.id]) == [claim.attempt.id]
    with pytest.raises(StaleAttemptError, match="cancelled"):
        await succeed(one, claim)


async def test_writes_of_two_processes_to_the_same_rollouts_never_block_each_other(stores):
    claims = [await begin(stores[0], limits=Limits(timeout_s=600, lease_s=600)) for _ in range(8)]
    ids = [claim.attempt.id for claim in claims]

    async def write(store, order):
        for turn in range(10):
            await store.add_spans([span(claim, sequence=turn) for claim in order])
            await store.heartbeat([claim.attempt.id for claim in order])

    await asyncio.gather(write(stores[0], claims), write(stores[1], claims[::-1]))
    assert len(await stores[0].spans([claim.rollout.id for claim in claims])) == 160
    assert await stores[1].heartbeat(ids) == []


async def test_equal_requests_of_two_processes_make_one_rollout(stores):
    for _ in range(10):
        same = rollout()
        both = await asyncio.gather(*(store.enqueue([same]) for store in stores))
        assert both[0][0].id == both[1][0].id
    assert len(await stores[0].rollouts(RolloutQuery())) == 10


async def test_killed_process_leaves_its_attempt_to_the_next_that_opens(options):
    process = python(DIES, options.url)
    rollout_id, attempt_id = (await asyncio.to_thread(process.stdout.readline)).split()
    end(process)
    store = PostgresStore(options)
    await store.open()
    (claim,) = await store.claim("w2", timeout_s=PATIENCE_S)
    assert (claim.rollout.id, claim.attempt.fence) == (rollout_id, 2)
    assert claim.rollout.attempts[0].id == attempt_id
    assert len(await store.spans([rollout_id])) == 1
    await store.close()


async def test_attempts_of_a_process_that_lives_are_left_alone(options):
    first, second = PostgresStore(options), PostgresStore(options)
    await first.open()
    claim = await begin(first)
    await second.open()
    assert await second.claim("w2", timeout_s=0) == []
    await succeed(first, claim)
    await first.close()
    await second.close()


async def test_lease_of_a_killed_process_expires_in_the_others(options):
    first, second = PostgresStore(options), PostgresStore(options)
    await first.open()
    await second.open()
    claim = await begin(first, limits=short(max_attempts=2))
    await first.close()
    await second.sweep()
    (again,) = await second.claim("w2", timeout_s=PATIENCE_S)
    assert (again.rollout.id, again.attempt.fence) == (claim.rollout.id, 2)
    await second.close()


async def test_what_was_acknowledged_before_a_kill_is_kept_whole(options):
    process = python(ENQUEUES, options.url)
    sent = []
    for _ in range(20):
        sent += (await asyncio.to_thread(process.stdout.readline)).split()
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate()
    sent += [one for line in rest.splitlines() if len(line.split()) == 3 for one in line.split()]
    store = PostgresStore(options)
    await store.open()
    found = [one.id for one in await store.rollouts(RolloutQuery(limit=100_000))]
    assert set(sent) <= set(found)
    assert len(found) % 3 == 0, "one request was kept in part"
    await store.close()


async def test_a_worker_that_dies_while_it_claims_keeps_no_rollout(options):
    """Its transaction is rolled back without a notification: a sweep wakes who waits."""
    store = PostgresStore(options)
    await store.open()
    await store.enqueue([rollout()])
    with psycopg.connect(options.url) as dying:
        dying.execute("SELECT 1 FROM agl_rollouts FOR UPDATE")
        waiting = asyncio.ensure_future(store.claim("w1"))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
    await store.sweep()
    assert len(await asyncio.wait_for(waiting, PATIENCE_S)) == 1
    await store.close()


async def test_a_reader_changes_nothing_and_is_woken(options):
    store = PostgresStore(options)
    reader = store.reader()
    await store.open()
    claim = await begin(store)
    await reader.open()
    with pytest.raises(StoreError, match="opened for reading"):
        await reader.enqueue([rollout()])
    final = asyncio.ensure_future(reader.wait([claim.rollout.id]))
    await asyncio.wait([final], timeout=0.05)
    await succeed(store, claim)
    assert len(await asyncio.wait_for(final, PATIENCE_S)) == 1
    await store.close()
    await reader.close()


async def test_pruning_deletes_spans_of_final_rollouts(options):
    store = PostgresStore(options)
    await store.open()
    done, running = await begin(store), await begin(store)
    await succeed(store, done, [span(done), span(done)])
    await store.add_spans([span(running)])
    ids = [done.rollout.id, running.rollout.id, "ro_unknown"]
    counted = await store.prune(ids, dry_run=True)
    assert (counted.rollouts, counted.spans, counted.kept) == (1, 2, 1)
    assert counted.size > 0
    assert len(await store.spans(ids)) == 3
    assert await store.prune(ids) == counted
    assert [one.attempt_id for one in await store.spans(ids)] == [running.attempt.id]
    assert (await store.prune(ids)).spans == 0
    await store.close()
