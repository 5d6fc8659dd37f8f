"""Filters find the same rows however they are read, and a search is made once."""

import itertools
import random

import pytest
from agl_reading import IndexedReading, RowFilter, RowQuery, ScanReading, _filters
from agl_testing import _store_samples as sample

from agl_core.store import MemoryStore
from agl_core.types import AttemptStatus, FailureKind, Reward, RolloutStatus, SpanKind

CHOICES = {
    "mode": ["train", "val"],
    "statuses": [(RolloutStatus.FAILED,), (RolloutStatus.SUCCEEDED, RolloutStatus.FAILED)],
    "cause": ["agent"],
    "task": ["t1"],
    "group_id": ["g1"],
    "agent": ["writer", "planner", "nobody"],
    "text": ["nor", "north south", "never"],
    "first_step": [1, 3],
    "last_step": [4],
    "least_reward": [0.2],
    "most_reward": [0.7],
    "run_id": ["run"],
}


@pytest.fixture
async def store():
    store = MemoryStore()
    await store.open()
    for number in range(40):
        await add(store, random.Random(number))
    yield store
    await store.close()


async def add(store, chance):
    task = sample.Task(
        id=f"t{chance.randrange(3)}", input=chance.choice(["north", "south north", "x"])
    )
    claim = await sample.begin(
        store,
        task=task,
        step=chance.randrange(6),
        mode=chance.choice(["train", "val"]),
        group_id=f"g{chance.randrange(4)}",
    )
    failed = chance.random() < 0.3
    reward = Reward(value=chance.choice([0.0, 0.25, 0.5, 1.0]))
    name = chance.choice(["writer", "planner"])
    spans = [sample.span(claim, kind=SpanKind.AGENT, name="a", agent=name)]
    if chance.random() < 0.8:
        spans.append(sample.span(claim, kind=SpanKind.REWARD, name="reward", reward=reward))
    await store.finish(
        claim.attempt.id,
        status=AttemptStatus.FAILED if failed else AttemptStatus.SUCCEEDED,
        failure=sample.failure(FailureKind.AGENT) if failed else None,
        spans=spans,
    )


@pytest.fixture
async def index(store, tmp_path):
    reading = IndexedReading(store, tmp_path / "index.db")
    await reading.open()
    while await reading.refresh():
        pass
    yield reading
    await reading.close()


@pytest.mark.parametrize("few", [0, 3, 12, 10_000])
async def test_rows_do_not_depend_on_how_they_are_read(store, index, monkeypatch, few):
    monkeypatch.setattr(_filters, "FEW", few)
    scan, chance, found = ScanReading(store), random.Random(few), 0
    for sort, descending in itertools.product(("time", "step", "reward", "tokens"), (True, False)):
        for _ in range(12):
            names = chance.sample(sorted(CHOICES), chance.randrange(4))
            wanted = RowFilter(**{name: chance.choice(CHOICES[name]) for name in names})
            query = RowQuery(wanted=wanted, sort=sort, descending=descending, limit=7)
            rows = await index.rows(query)
            assert rows == await scan.rows(query), query
            assert await index.count(wanted, most=5) == await scan.count(wanted, most=5)
            found += len(rows)
    assert found


async def test_a_search_is_made_once_and_again_when_there_is_more(store, index):
    searches = []
    connection = index._file._reader
    connection.set_trace_callback(lambda sql: searches.append(sql) if "MATCH" in sql else None)
    wanted = RowFilter(text="north")
    before = await index.count(wanted)
    await index.rows(RowQuery(wanted=wanted))
    await index.rows(RowQuery(wanted=wanted, sort="reward"))
    assert len(searches) == 1
    while (await index.count(wanted)).number == before.number:
        await add(store, random.Random(len(searches)))
        await index.refresh()
    assert len(searches) > 1
    made = len(searches)
    for text in ("south", "x", "t1", "t2", "t0"):
        await index.rows(RowQuery(wanted=RowFilter(text=text)))
    await index.rows(RowQuery(wanted=wanted))
    assert len(searches) == made + 6
    tables = "SELECT count(*) FROM temp.sqlite_master"
    assert connection.execute(tables).fetchone() == (_filters._KEPT,)
    connection.set_trace_callback(None)
