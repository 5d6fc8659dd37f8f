from __future__ import annotations

import shutil
import sqlite3
import threading

from agl_testing._store_samples import begin, span

from agl_core.store._pace import Pace
from agl_core.store.sqlite import SqliteStore


def test_much_work_is_for_a_thread_and_all_of_it_where_the_disk_was_slow():
    pace = Pace()
    assert pace.allows(1)
    assert not pace.allows(10_000)
    pace.took(0.001)
    assert pace.allows(1)
    pace.took(60.0)
    pace.took(0.001)
    assert not pace.allows(1)
    assert not Pace(ever=False).allows(1)


async def test_little_is_written_and_read_on_the_loop_and_more_in_threads(tmp_path, monkeypatch):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    monkeypatch.setattr(store._writer, "_pace", Pace())
    where = []
    claim = await begin(store)

    def traced(statement):
        where.append((statement.split()[0], threading.current_thread()))

    store._writer._transaction._sql.set_trace_callback(traced)
    store._reading.set_trace_callback(traced)
    await store.add_spans([span(claim)])
    await store.spans([claim.rollout.id])
    assert {thread for _, thread in where} == {threading.main_thread()}
    where.clear()
    await store.add_spans([span(claim) for _ in range(100)])
    await store.spans([claim.rollout.id] * 100)
    assert threading.main_thread() not in {thread for _, thread in where}
    await store.close()


async def test_commits_reach_the_file_itself_while_the_store_is_open(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    claim = await begin(store)
    await store.add_spans([span(claim) for _ in range(1000)])
    while (running := store._writer._checkpoints._running) is not None:
        await running
    shutil.copy(tmp_path / "store.db", tmp_path / "without-log.db")
    copy = sqlite3.connect(tmp_path / "without-log.db")
    assert copy.execute("SELECT count(*) FROM spans").fetchone() == (1000,)
    copy.close()
    await store.close()
