from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading

import pytest
from agl_testing._store_samples import begin, begin_all, span

from agl_core.store import _writer
from agl_core.store._sqlite import SqliteStore
from agl_core.store._writer import Throttle


def test_nothing_is_admitted_after_a_stall_nor_without_trust_in_the_disk():
    throttle = Throttle()
    assert throttle.admits(1)
    assert not throttle.admits(10_000)
    assert not throttle.admits(float("inf"))
    throttle.took(60.0)
    throttle.measured(1, 0.001)
    assert not throttle.admits(1)
    assert not Throttle(ever=False).admits(1)


def test_the_limit_follows_the_measured_time_per_row():
    throttle = Throttle()
    assert throttle.admits(160)
    for _ in range(50):
        throttle.measured(16, 16 * 200e-6)
    assert not throttle.admits(160)
    assert throttle.admits(10)
    for _ in range(200):
        throttle.measured(10, 10 * 1e-6)
    assert throttle.admits(512)


def test_a_stall_says_nothing_of_the_time_per_row(monkeypatch):
    monkeypatch.setattr(_writer, "monotonic", lambda: now)
    now = 0.0
    throttle = Throttle()
    throttle.took(2.0)
    throttle.measured(1, 2.0)
    assert not throttle.admits(1)
    now = 19.9
    assert not throttle.admits(1)
    now = 20.1
    assert throttle.admits(160)


@pytest.fixture
async def store(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def threads(store, monkeypatch):
    """The threads in which statements ran, at the assumed time per row whatever the machine does."""
    monkeypatch.setattr(store._writer, "_throttle", Throttle())
    monkeypatch.setattr(Throttle, "measured", lambda self, rows, seconds: None)
    monkeypatch.setattr(Throttle, "took", lambda self, seconds: None)
    found = []

    def traced(statement):
        found.append((statement.split()[0], threading.current_thread()))

    store._writer._transaction._sql.set_trace_callback(traced)
    store._reading._connection.set_trace_callback(traced)
    return found


async def test_little_is_written_and_read_on_the_loop_and_more_in_threads(store, threads):
    claim = await begin(store)
    threads.clear()
    await store.add_spans([span(claim)])
    await store.spans([claim.rollout.id])
    assert {thread for _, thread in threads} == {threading.main_thread()}
    threads.clear()
    await store.add_spans([span(claim) for _ in range(1000)])
    await store.spans([claim.rollout.id] * 1000)
    assert threading.main_thread() not in {thread for _, thread in threads}


async def test_jobs_that_arrive_together_are_committed_on_the_loop_as_many_at_once_as_fit(
    store, threads
):
    claims = await begin_all(store, 16)
    threads.clear()
    await asyncio.gather(*(store.add_spans([span(claim) for _ in range(40)]) for claim in claims))
    assert {thread for _, thread in threads} == {threading.main_thread()}
    commits = sum(verb == "COMMIT" for verb, _ in threads)
    assert commits == 4  # 640 rows of 20 us each in turns of at most 5 ms
    read = await store.spans([claim.rollout.id for claim in claims])
    assert len(read) == 640


async def test_what_follows_a_large_job_waits_for_it_in_the_thread(store, threads):
    first, second = await begin_all(store, 2)
    threads.clear()
    await asyncio.gather(
        store.add_spans([span(first) for _ in range(1000)]), store.add_spans([span(second)])
    )
    assert threading.main_thread() not in {thread for _, thread in threads}


async def test_stopping_commits_what_still_waits_for_its_turn(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    jobs = [store._writer.submit(lambda store: store.heartbeat([]), rows=200) for _ in range(16)]
    await store._writer.stop()
    assert [await job for job in jobs] == [[]] * 16
    await store.close()


async def test_only_commits_measure_the_time_of_a_row(store, monkeypatch):
    """A read's number of rows is an upper bound, and a commit that was given up took no time."""
    samples = []
    monkeypatch.setattr(Throttle, "measured", lambda self, rows, seconds: samples.append(rows))
    claim = await begin(store)
    samples.clear()
    await store.spans([claim.rollout.id])
    assert samples == []
    monkeypatch.setattr(store._writer._transaction, "run", given_up(store._writer._transaction.run))
    await store.add_spans([span(claim)])
    assert samples == []


def given_up(run):
    """As where another process holds the file: a commit on the loop does nothing."""
    return lambda jobs, *, patient=True: patient and run(jobs)


def test_a_large_job_is_never_done_on_the_loop_whatever_was_measured():
    throttle = Throttle()
    for _ in range(100):
        throttle.measured(500, 1e-6)
    assert throttle.admits(512)
    assert not throttle.admits(513)


async def test_commits_reach_the_file_itself_while_the_store_is_open(store, tmp_path):
    claim = await begin(store)
    await store.add_spans([span(claim) for _ in range(1000)])
    while (running := store._writer._checkpoints._running) is not None:
        await asyncio.wait([running])  # also lets the callback run that clears it
    shutil.copy(tmp_path / "store.db", tmp_path / "without-log.db")
    copy = sqlite3.connect(tmp_path / "without-log.db")
    assert copy.execute("SELECT count(*) FROM spans").fetchone() == (1000,)
    copy.close()
