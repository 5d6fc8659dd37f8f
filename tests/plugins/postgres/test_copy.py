"""Copies into a database and out of it."""

from agl_postgres import PostgresStore
from agl_stores import copy_store

from agl_core.store._sqlite import SqliteStore
from agl_core.types import RolloutQuery
from tests.plugins.records.filled import ODD, fill


async def copied(source, target):
    await source.open()
    await target.open()
    try:
        return await copy_store(source, target)
    finally:
        await target.close()
        await source.close()


async def test_records_go_into_a_database_and_back(options, tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    await fill(store)
    await store.close()

    there = await copied(SqliteStore(tmp_path / "store.db").reader(), PostgresStore(options))
    again = await copied(SqliteStore(tmp_path / "store.db").reader(), PostgresStore(options))
    back = await copied(PostgresStore(options).reader(), SqliteStore(tmp_path / "back.db"))

    assert [(each.source, each.before) for each in there] == [(3, 0), (7, 0), (5, 0), (8, 0)]
    assert all(each.same for each in (*there, *again, *back))
    assert [each.digest for each in there] == [each.digest for each in again]
    assert [each.digest for each in there] == [each.digest for each in back]
    store = SqliteStore(tmp_path / "back.db")
    await store.open()
    assert len(await store.rollouts(RolloutQuery())) == 7
    claims = await store.claim("w", limit=9, timeout_s=0.0)
    await store.close()
    assert [claim.rollout.id for claim in claims] == [f"ro_{ODD}", "ro_c", "ro_a", "ro_b"]
