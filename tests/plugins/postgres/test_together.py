"""Operations that share a transaction, and reads that share a statement."""

from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from contextlib import asynccontextmanager

import psycopg
import pytest
from agl_postgres import PostgresStore
from agl_testing._store_samples import begin, begin_all, failure, rollout, span, succeed

from agl_core.errors import StaleAttemptError, StoreError
from agl_core.types import (
    AttemptStatus,
    FailureKind,
    Ingest,
    Limits,
    RolloutQuery,
    RolloutStatus,
)

PATIENCE_S = 60
MANY = 16


@pytest.fixture
async def store(options):
    store = PostgresStore(options)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def sent(monkeypatch):
    """Counts of the statements that were sent, by their first three words."""
    counts = Counter()
    execute = psycopg.Connection.execute

    def counted(connection, query, *arguments, **options):
        counts[" ".join(str(query).split()[:3])] += 1
        return execute(connection, query, *arguments, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    return counts


def wait_for_locks(url, transactions):
    """Return once the server shows that so many transactions wait for a lock."""
    waits = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with psycopg.connect(url, autocommit=True) as watching:
        while len(watching.execute(waits).fetchall()) < transactions:
            pass


@asynccontextmanager
async def locked(url, *claims):
    """Lock rollouts while inside."""
    with psycopg.connect(url) as connection:
        ids = [claim.rollout.id for claim in claims]
        connection.execute("SELECT 1 FROM agl_rollouts WHERE id = ANY(%s) FOR UPDATE", [ids])
        yield
        await asyncio.sleep(0)  # the operations of tasks that were started inside are queued


@asynccontextmanager
async def one_transaction(options, store, held=None):
    """Let operations that are started inside share the next transaction: spans one, others one."""
    beating, adding = held or [await begin(store), await begin(store)]
    async with locked(options.url, beating, adding):
        blocked = [
            asyncio.ensure_future(store.heartbeat([beating.attempt.id])),
            asyncio.ensure_future(store.add_spans([span(adding)])),
        ]
        await asyncio.to_thread(wait_for_locks, options.url, len(blocked))
        yield
    await asyncio.wait_for(asyncio.gather(*blocked), PATIENCE_S)


async def test_operations_of_many_workers_take_few_statements(options, store, sent):
    claims, others = await begin_all(store, MANY), await begin_all(store, MANY)
    async with one_transaction(options, store):
        sent.clear()
        adding = [asyncio.ensure_future(store.add_spans([span(each)])) for each in claims]
        ending = [asyncio.ensure_future(store.heartbeat([each.attempt.id])) for each in others]
        fresh = [asyncio.ensure_future(store.enqueue([rollout()])) for _ in claims]
    assert await asyncio.gather(*adding) == [Ingest(accepted=1)] * MANY
    await asyncio.gather(*ending, *fresh)
    # Two by the transactions that were blocked.
    assert sent["INSERT INTO agl_spans"] == 2
    assert sent["INSERT INTO agl_rollouts"] == 1
    assert sent["INSERT INTO agl_attempts"] == 2
    assert sent["COMMIT"] == 4


async def test_reads_of_many_workers_take_few_statements(store, sent):
    claims = await begin_all(store, MANY)
    await store.add_spans([span(each) for each in claims])
    for each in claims:
        await succeed(store, each, [span(each)])
    sent.clear()
    waits = [store.wait([each.rollout.id]) for each in claims]
    reads = [store.spans([each.rollout.id]) for each in claims]
    found = await asyncio.gather(*waits, *reads)
    assert [one.id for (one,) in found[:MANY]] == [each.rollout.id for each in claims]
    for each, spans in zip(claims, found[MANY:], strict=True):
        assert [one.attempt_id for one in spans] == [each.attempt.id] * 2
    assert sum(sent.values()) <= MANY


async def test_what_tasks_ask_one_after_the_other_goes_to_the_server_together(store, sent):
    """Each task makes its spans just before it asks, while the thread has nothing to do."""
    claims = await begin_all(store, MANY)
    sent.clear()

    async def write_and_read(claim):
        await store.add_spans([span(claim) for _ in range(200)])
        await store.spans([claim.rollout.id])

    await asyncio.gather(*map(write_and_read, claims))
    assert sent["COMMIT"] == 1
    assert sent["SELECT rollouts.id, attempts.number,"] == 1


async def test_claims_see_what_the_same_transaction_queued(options, store):
    async with one_transaction(options, store):
        before = [asyncio.ensure_future(store.enqueue([rollout()])) for _ in range(2)]
        first = asyncio.ensure_future(store.claim("w1", limit=3, timeout_s=0))
        after = asyncio.ensure_future(store.enqueue([rollout(), rollout()]))
        second = asyncio.ensure_future(store.claim("w2", limit=3, timeout_s=0))
        third = asyncio.ensure_future(store.claim("w3", timeout_s=0))
    queued = [one.id for (one,) in await asyncio.gather(*before)]
    queued += [one.id for one in await after]
    assert [claim.rollout.id for claim in await first] == queued[:2]
    assert [claim.rollout.id for claim in await second] == queued[2:]
    assert await third == []
    stored = await store.rollouts(RolloutQuery(ids=tuple(queued)))
    assert {one.status for one in stored} == {RolloutStatus.RUNNING}
    assert [len(one.attempts) for one in stored] == [1] * 4


async def test_what_is_queued_again_is_claimed_before_what_was_added_later(options, store):
    again = await begin(store, limits=Limits(max_attempts=2, retry_on=(FailureKind.LOST,)))
    held = [await begin(store), await begin(store)]
    later = [one.id for one in await store.enqueue([rollout(), rollout()])]
    async with one_transaction(options, store, held):
        lost = asyncio.ensure_future(
            store.finish(
                again.attempt.id, status=AttemptStatus.LOST, failure=failure(FailureKind.LOST)
            )
        )
        first = asyncio.ensure_future(store.claim("w1", limit=2, timeout_s=0))
    await lost
    claims = await first
    assert [claim.rollout.id for claim in claims] == [again.rollout.id, later[0]]
    assert [claim.attempt.fence for claim in claims] == [2, 1]
    (rest,) = await store.claim("w2", timeout_s=PATIENCE_S)
    assert rest.rollout.id == later[1]


async def test_spans_that_are_stored_already_are_counted_among_others(options, store):
    claims = await begin_all(store, 3)
    old = [span(each) for each in claims]
    await store.add_spans(old)
    new = span(claims[0])
    async with one_transaction(options, store):
        repeated = asyncio.ensure_future(store.add_spans([*old, new, new]))
        once_more = asyncio.ensure_future(store.add_spans([new]))
        other = asyncio.ensure_future(store.add_spans([span(claims[1])]))
        ended = asyncio.ensure_future(succeed(store, claims[2], [old[2], span(claims[2])]))
    assert await repeated == Ingest(accepted=1, duplicate=4)
    assert await once_more == Ingest(duplicate=1)
    assert await other == Ingest(accepted=1)
    await ended
    counts = Counter(one.attempt_id for one in await store.spans([c.rollout.id for c in claims]))
    assert [counts[each.attempt.id] for each in claims] == [2, 2, 2]


async def test_an_operation_that_fails_leaves_the_others(options, store):
    done, running, *held = await begin_all(store, 4)
    await succeed(store, done)
    existing = rollout()
    await store.enqueue([existing])
    async with one_transaction(options, store, held):
        adding = asyncio.ensure_future(store.add_spans([span(running)]))
        stale = asyncio.ensure_future(succeed(store, done, [span(done)]))
        clashing = asyncio.ensure_future(store.enqueue([rollout(id=existing.id, run_id="other")]))
        long = asyncio.ensure_future(store.enqueue([rollout(id=os.urandom(10_000).hex())]))
        fine = asyncio.ensure_future(store.enqueue([rollout()]))
    assert await adding == Ingest(accepted=1)
    with pytest.raises(StaleAttemptError):
        await stale
    with pytest.raises(StoreError, match="exists with other content"):
        await clashing
    with pytest.raises(StoreError, match="too long"):
        await long
    assert [one.id for one in await store.rollouts(RolloutQuery(ids=((await fine)[0].id,)))]


async def test_operations_on_one_rollout_keep_their_order(options, store):
    claim, other = await begin_all(store, 2)
    async with locked(options.url, claim):
        adding = asyncio.ensure_future(store.add_spans([span(claim)]))
        await asyncio.to_thread(wait_for_locks, options.url, 1)
        ended = asyncio.ensure_future(succeed(store, claim))
        late = asyncio.ensure_future(store.add_spans([span(claim)]))
        cancelled = asyncio.ensure_future(store.cancel([other.rollout.id], reason="enough"))
        after = asyncio.ensure_future(store.add_spans([span(other)]))
    assert await adding == Ingest(accepted=1)
    await ended
    assert await late == Ingest(late=1)
    assert [one.status for one in await cancelled] == [RolloutStatus.CANCELLED]
    assert await after == Ingest(late=1)


async def test_spans_of_an_attempt_do_not_wait_for_the_states_of_others(options, store):
    one, other = await begin_all(store, 2)
    async with locked(options.url, one):
        blocked = asyncio.ensure_future(store.heartbeat([one.attempt.id]))
        await asyncio.to_thread(wait_for_locks, options.url, 1)
        adding = store.add_spans([span(other)])
        assert await asyncio.wait_for(adding, PATIENCE_S) == Ingest(accepted=1)
        assert not blocked.done()
    assert await blocked == []


async def test_closing_completes_operations_that_wait_for_others(options):
    store = PostgresStore(options)
    await store.open()
    claim = await begin(store)
    async with locked(options.url, claim):
        adding = asyncio.ensure_future(store.add_spans([span(claim)]))
        ended = asyncio.ensure_future(succeed(store, claim))
        await asyncio.to_thread(wait_for_locks, options.url, 1)
        ended.cancel()
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
    await asyncio.wait_for(closing, PATIENCE_S)
    assert await adding == Ingest(accepted=1)
    await store.open()
    (found,) = await store.rollouts(RolloutQuery())
    assert found.status is RolloutStatus.SUCCEEDED
    await store.close()


async def test_a_claim_that_skipped_a_locked_rollout_is_woken(options):
    store = PostgresStore(options)
    store.sweep_interval_s = math.inf
    await store.open()
    lost = await begin(store, limits=Limits(max_attempts=2, retry_on=(FailureKind.LOST,)))
    await store.finish(
        lost.attempt.id, status=AttemptStatus.LOST, failure=failure(FailureKind.LOST)
    )
    async with locked(options.url, lost):
        late = asyncio.ensure_future(store.add_spans([span(lost)]))
        await asyncio.to_thread(wait_for_locks, options.url, 1)
        claiming = asyncio.ensure_future(store.claim("w2"))
        await asyncio.wait([claiming], timeout=0.2)
        assert not claiming.done()
    assert await late == Ingest(late=1)
    (claim,) = await asyncio.wait_for(claiming, PATIENCE_S)
    assert claim.rollout.id == lost.rollout.id
    await store.close()


async def test_a_pool_of_two_connections_does_all(options):
    small = options.model_copy(update={"pool_size": 1, "pool_max_overflow": 1})
    store = PostgresStore(small)
    await store.open()

    async def work():
        (queued,) = await store.enqueue([rollout()])
        (claim,) = await store.claim("w1", timeout_s=PATIENCE_S)
        await store.add_spans([span(claim)])
        await succeed(store, claim)
        await store.wait([queued.id])
        assert len(await store.spans([claim.rollout.id])) == 1

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(MANY))), PATIENCE_S)
    assert store.statistics()["pool_size"] <= 2
    await store.close()


async def test_merged_reads_have_answers_and_errors_of_their_own(options, store):
    odd = [rollout(id=f"ro_{text}") for text in ("\0", "\ud800", "é", "z", "Z")]
    claims = []
    for one in odd:
        claims.append(await begin(store, id=one.id))
        await store.add_spans([span(claims[-1])])
        await succeed(store, claims[-1])
    broken = await begin(store)
    await store.add_spans([span(broken)])
    with psycopg.connect(options.url) as connection:
        connection.execute("UPDATE agl_rollouts SET body = 'x' WHERE id = %s", [broken.rollout.id])
    found = await asyncio.gather(
        *(store.wait([each.rollout.id]) for each in claims),
        *(store.spans([each.rollout.id]) for each in claims),
        store.wait([broken.rollout.id], timeout_s=0),
        store.wait(["ro_unknown"], timeout_s=0),
        store.spans(["ro_unknown"]),
        store.spans([broken.rollout.id]),
        store.spans([claims[0].rollout.id], attempt_id=claims[0].attempt.id),
        store.spans([each.rollout.id for each in claims[::-1]]),
        return_exceptions=True,
    )
    count = len(claims)
    assert [one.id for (one,) in found[:count]] == [each.id for each in odd]
    assert [one.rollout_id for (one,) in found[count : 2 * count]] == [each.id for each in odd]
    unreadable, unknown, none, spans, of_attempt, ordered = found[2 * count :]
    assert isinstance(unreadable, StoreError)
    assert isinstance(unknown, StoreError)
    assert "ro_unknown" in str(unknown)
    assert none == []
    assert [one.attempt_id for one in spans] == [broken.attempt.id]
    assert [one.attempt_id for one in of_attempt] == [claims[0].attempt.id]
    assert [one.rollout_id for one in ordered] == sorted(each.id for each in odd)
