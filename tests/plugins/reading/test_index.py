import sqlite3

import pytest
from agl_reading import Cursor, IndexedReading, RowFilter, RowQuery, _filters
from agl_testing import _store_samples as sample
from agl_testing.reading_contract import ReadingContract

from agl_core.errors import ConfigError, StoreError
from agl_core.store import MemoryStore
from agl_core.store._sqlite import SqliteStore
from agl_core.types import Reward, RolloutStatus, SpanKind


async def refreshed(reading, **most):
    while await reading.refresh(**most):
        pass


class TestIndex(ReadingContract):
    @pytest.fixture
    async def read(self, tmp_path):
        made = []

        async def opened(store):
            reading = IndexedReading(store, tmp_path / "cache" / "index.db")
            await reading.open()
            made.append(reading)
            await refreshed(reading)
            return reading

        yield opened
        for reading in made:
            await reading.close()


@pytest.fixture
async def store():
    store = MemoryStore()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def index(store, tmp_path):
    reading = IndexedReading(store, tmp_path / "index.db", weights={"side": 0.5})
    await reading.open()
    yield reading
    await reading.close()


def rewarded(claim, value, channel="main"):
    reward = Reward(value=value, channel=channel)
    return sample.span(claim, kind=SpanKind.REWARD, name="reward", reward=reward)


async def statuses(index):
    return [row.status for row in await index.rows(RowQuery(descending=False))]


async def test_it_follows_a_run(store, index):
    assert not await index.refresh()
    assert await index.rows(RowQuery()) == []
    claim = await sample.begin(store)
    await index.refresh()
    assert await statuses(index) == [RolloutStatus.RUNNING]
    changes = index.progress.changes
    await index.refresh()
    assert index.progress.changes == changes
    await sample.succeed(store, claim, [rewarded(claim, 1.0), rewarded(claim, 1.0, "side")])
    await sample.begin(store)
    await index.refresh()
    assert await statuses(index) == [RolloutStatus.SUCCEEDED, RolloutStatus.RUNNING]
    assert [row.reward for row in await index.rows(RowQuery())] == [None, 1.5]
    assert index.progress.rows == 2
    assert index.progress.changes > changes


async def test_a_large_store_is_taken_in_pieces_newest_first(store, index):
    for claim in await sample.begin_all(store, 60):
        await sample.succeed(store, claim, [rewarded(claim, 1.0)])
    assert await index.refresh(most=20)
    while index.progress.rows < 60:
        await index.refresh(most=20)
    await index.refresh(most=20)
    rows = await index.rows(RowQuery(limit=100))
    counted = [row.counted for row in rows]
    assert counted[0]
    assert counted == sorted(counted, reverse=True)
    await refreshed(index)
    assert index.progress.uncounted == 0
    (total,) = await index.sums(["channel"])
    assert (total.n, total.total) == (60, 60.0)


async def test_two_processes_count_each_rollout_once(store, index, tmp_path):
    other = IndexedReading(store, tmp_path / "index.db", weights={"side": 0.5})
    await other.open()
    for claim in await sample.begin_all(store, 3):
        await sample.succeed(store, claim, [rewarded(claim, 1.0)])
    await refreshed(index)
    await refreshed(other)
    (total,) = await other.sums(["channel"])
    assert total.n == 3
    assert await other.rows(RowQuery()) == await index.rows(RowQuery())
    await other.close()


async def test_the_index_of_another_store_is_built_anew(store, tmp_path):
    for round_ in range(2):
        fresh = MemoryStore()
        await fresh.open()
        claim = await sample.begin(fresh)
        index = IndexedReading(fresh, tmp_path / "index.db")
        await index.open()
        await refreshed(index)
        assert [row.id for row in await index.rows(RowQuery())] == [claim.rollout.id], round_
        await index.close()
        await fresh.close()


async def test_a_damaged_index_is_built_anew(store, tmp_path):
    path = tmp_path / "index.db"
    path.write_bytes(b"no database" * 1000)
    index = IndexedReading(store, path)
    await index.open()
    assert await index.rows(RowQuery()) == []
    await index.close()
    assert path.stat().st_mode & 0o077 == 0


async def test_an_index_of_another_version_is_built_anew(store, tmp_path):
    path = tmp_path / "index.db"
    with sqlite3.connect(path) as sql:
        sql.execute("CREATE TABLE rows (other)")
        sql.execute("PRAGMA user_version = 99")
    sql.close()
    index = IndexedReading(store, path)
    await index.open()
    assert await index.rows(RowQuery()) == []
    await index.close()


async def test_a_place_without_a_directory_is_an_error(store, tmp_path):
    (tmp_path / "file").write_text("")
    index = IndexedReading(store, tmp_path / "file" / "index.db")
    with pytest.raises(StoreError, match="--index"):
        await index.open()


async def test_the_file_of_the_store_is_not_changed(tmp_path):
    writing = SqliteStore(tmp_path / "store.db")
    await writing.open()
    claim = await sample.begin(writing)
    await sample.succeed(writing, claim, [rewarded(claim, 1.0)])
    await writing.close()
    before = (tmp_path / "store.db").read_bytes()
    reader = SqliteStore(tmp_path / "store.db").reader()
    await reader.open()
    index = IndexedReading(reader, tmp_path / "index" / "index.db")
    await index.open()
    await refreshed(index)
    assert (await index.count(RowFilter(least_reward=1))).number == 1
    await index.close()
    await reader.close()
    assert (tmp_path / "store.db").read_bytes() == before


async def test_pages_never_sort_a_whole_store(store, index, monkeypatch):
    """An order is an index's: a page far into a million rows takes as long as the first."""
    monkeypatch.setattr(_filters, "FEW", 0)  # as where every condition has many rows
    connection = index._file._reader
    seen = []
    connection.set_trace_callback(seen.append)
    for sort in ("time", "step", "reward", "seconds", "tokens"):
        for wanted in (
            RowFilter(),
            RowFilter(statuses=(RolloutStatus.SUCCEEDED,), run_id="run"),
            RowFilter(agent="writer", text="north"),
        ):
            await index.rows(RowQuery(wanted=wanted, sort=sort, after=Cursor(key=1.0, id="ro")))
    connection.set_trace_callback(None)
    seen = [each for each in seen if each.startswith("SELECT body")]
    assert len(seen) == 15
    for statement in seen:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        assert not any("TEMP B-TREE" in str(step) for step in plan), (statement, plan)


@pytest.mark.parametrize("text", ["", "1", "x:y", "nan:ro", "1:"])
def test_what_is_no_place_is_refused(text):
    with pytest.raises(ConfigError, match="not a place"):
        Cursor.parse(text)
