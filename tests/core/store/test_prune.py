from __future__ import annotations

import sqlite3

import pytest
from agl_testing._store_samples import begin, model_call, rollout, span, succeed

from agl_core.errors import StoreError
from agl_core.store._memory import MemoryStore
from agl_core.store._records import Prunable, Pruned
from agl_core.store._sql import SqlRecords
from agl_core.store._sqlite import SqliteStore
from agl_core.types import RolloutQuery


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


async def test_only_final_rollouts_lose_their_spans(store):
    done, running = await begin(store), await begin(store)
    queued = rollout()
    await store.enqueue([queued])
    await succeed(store, done, [model_call(done), span(done)])
    await store.add_spans([span(running)])
    ids = [done.rollout.id, running.rollout.id, queued.id, "unknown"]

    counted = await store.prune(ids, dry_run=True)
    assert (counted.rollouts, counted.spans, counted.kept) == (1, 2, 2)
    assert counted.size > 100
    assert len(await store.spans(ids)) == 3

    assert await store.prune(ids) == counted
    assert [one.attempt_id for one in await store.spans(ids)] == [running.attempt.id]
    rows = {row.id: row for row in await store.rollouts(RolloutQuery())}
    assert rows[done.rollout.id].consumed
    assert rows[done.rollout.id].attempts[0].sealed
    assert not rows[running.rollout.id].consumed
    assert await store.prune(ids) == Pruned(kept=2)


async def test_a_run_goes_on_while_its_file_is_thinned_out_and_gets_smaller(store, tmp_path):
    large = "x" * 20_000
    running = await begin(store)
    done = []
    for _ in range(60):
        claim = await begin(store)
        await succeed(store, claim, [span(claim, name=f"{number}{large}") for number in range(5)])
        done.append(claim.rollout.id)
    await store.reader().open()
    before = (tmp_path / "store.db").stat().st_size

    pruned = await store.prune(done)

    assert (pruned.rollouts, pruned.spans) == (60, 300)
    assert pruned.size > 300 * len(large)
    await store.add_spans([span(running)])
    await succeed(store, running, [span(running)])
    assert len(await store.spans([running.rollout.id])) == 2
    await store.close()
    assert (tmp_path / "store.db").stat().st_size < max(before, pruned.size) / 4
    await store.open()


async def test_a_store_that_is_not_open_can_be_thinned_out_and_is_not_recovered(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    running, done = await begin(store), await begin(store)
    await succeed(store, done, [span(done)])
    await store.close()

    pruned = await store.prune([done.rollout.id, running.rollout.id])

    assert (pruned.spans, pruned.kept) == (1, 1)
    reader = store.reader()
    await reader.open()
    rows = {row.id: row.status for row in await reader.rollouts(RolloutQuery())}
    await reader.close()
    assert rows[running.rollout.id] == "running"


@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_failure_that_ends_the_transaction_itself_is_told_as_what_it_is(
    store, monkeypatch, dry_run
):
    done = await begin(store)
    await succeed(store, done, [span(done)])

    def fail(records, _):
        records._sql.execute("ROLLBACK")  # as SQLite does of its own where a disk is full
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(SqlRecords, "rollouts", fail)
    with pytest.raises(StoreError, match="There is no space"):
        await store.prune([done.rollout.id], dry_run=dry_run)
    reader = store.reader()
    await reader.open()
    with pytest.raises(StoreError, match="There is no space"):
        await reader.wait([done.rollout.id])
    await reader.close()


async def test_nothing_is_made_where_nothing_is(tmp_path):
    for dry_run in (True, False):
        with pytest.raises(StoreError, match="does not exist"):
            await SqliteStore(tmp_path / "store.db").prune(["ro"], dry_run=dry_run)
    assert list(tmp_path.iterdir()) == []


def test_stores_say_whether_they_can_be_thinned_out(tmp_path):
    assert isinstance(SqliteStore(tmp_path / "store.db"), Prunable)
    assert not isinstance(MemoryStore(), Prunable)
