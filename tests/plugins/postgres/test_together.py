"""Operations that share a transaction, and reads that share a statement."""

from __future__ import annotations

import asyncio
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


def wait_for_lock(url):
    """Return once the server shows that a transaction waits for a lock."""
    waits = (
        "SELECT 1 FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with psycopg.connect(url, autocommit=True) as watching:
        while not watching.execute(waits).fetchall():
            pass


@asynccontextmanager
async def one_transaction(options, store, held=None):
    """Let the operations that are started inside share the next transaction."""
    held = held or await begin(store)
    with psycopg.connect(options.url) as connection:
        connection.execute("SELECT 1 FROM agl_rollouts WHERE id = %s FOR UPDATE", [held.rollout.id])
        blocked = asyncio.ensure_future(store.heartbeat([held.attempt.id]))
        await asyncio.to_thread(wait_for_lock, options.url)
        yield
        await asyncio.sleep(0)  # the operations are queued
    assert await asyncio.wait_for(blocked, PATIENCE_S) == []


async def test_operations_of_many_workers_take_few_statements(options, store, sent):
    claims = await begin_all(store, MANY)
    async with one_transaction(options, store):
        sent.clear()
        adding = [asyncio.ensure_future(store.add_spans([span(each)])) for each in claims]
        ending = [asyncio.ensure_future(succeed(store, each)) for each in claims]
        fresh = [asyncio.ensure_future(store.enqueue([rollout()])) for _ in claims]
    assert await asyncio.gather(*adding) == [Ingest(accepted=1)] * MANY
    await asyncio.gather(*ending, *fresh)
    # One by the transaction that was blocked.
    assert sent["INSERT INTO agl_spans"] == 1
    assert sent["INSERT INTO agl_rollouts"] == 1
    assert sent["INSERT INTO agl_attempts"] == 2
    assert sent["UPDATE agl_rollouts SET"] <= 2
    assert sent["COMMIT"] == 2


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
    held = await begin(store)
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
    done, running, held = await begin_all(store, 3)
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
