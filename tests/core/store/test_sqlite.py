from __future__ import annotations

import asyncio
import math
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from agl_testing._store_samples import (
    begin,
    begin_all,
    model_call,
    rollout,
    span,
    succeed,
)
from agl_testing.clock import ManualClock

from agl_core.errors import ConfigError, LeadHeldError, StoreError
from agl_core.store._sql import SCHEMA_VERSION, FileSettings, connect, prepare
from agl_core.store._sqlite import SqliteStore
from agl_core.store._writer import GroupCommit, WriteJob, Writer
from agl_core.types import AttemptStatus, Ingest, Limits, RolloutQuery, RolloutStatus


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new" / "store.db"


@pytest.fixture
async def store(path):
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


def python(program, *arguments):
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


ENQUEUES = """
    import asyncio, sys
    from agl_core.store._sqlite import SqliteStore
    from agl_testing._store_samples import rollout

    async def main(path, n):
        store = SqliteStore(path, busy_timeout_s=60)
        await store.open()
        for _ in range(n):
            await store.enqueue([rollout(run_id=sys.argv[3])])
        await store.close()

    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

CRASHES = """
    import asyncio, sys
    from agl_core.store._sqlite import SqliteStore
    from agl_testing._store_samples import begin, span

    async def main(path):
        store = SqliteStore(path)
        await store.open()
        claim = await begin(store)
        await store.add_spans([span(claim)])
        print(claim.rollout.id, claim.attempt.id, flush=True)
        sys.stdin.read()

    asyncio.run(main(sys.argv[1]))
"""


async def test_processes_that_write_together_all_succeed(path):
    writers = [python(ENQUEUES, path, 50, f"run{n}") for n in range(4)]
    while not path.with_name("store.db-wal").exists():  # noqa: ASYNC110  in another process
        await asyncio.sleep(0.01)
    reader = sqlite3.connect(path, timeout=60)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
    for writer in writers:
        assert await asyncio.to_thread(writer.wait, 100) == 0
        writer.communicate()
    reader.close()
    store = SqliteStore(path)
    await store.open()
    found = await store.rollouts(RolloutQuery())
    assert sorted(one.run_id for one in found) == sorted(
        f"run{n}" for n in range(4) for _ in range(50)
    )
    await store.close()


async def test_writer_waits_for_a_lock_and_says_who_is_busy_beyond_that(store, path):
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(store.enqueue([rollout()]))
    await asyncio.wait({waiting}, timeout=0.05)
    assert not waiting.done()
    impatient = SqliteStore(path, busy_timeout_s=0.05)
    await impatient.open()
    with pytest.raises(StoreError, match=r"busy.*store\.db.*0\.05 s.*busy_timeout_s"):
        await impatient.enqueue([rollout()])
    await impatient.close()
    other.execute("ROLLBACK")
    other.close()
    assert len(await asyncio.wait_for(waiting, 100)) == 1


async def test_killed_process_loses_nothing_it_was_told_is_stored(path):
    child = python(CRASHES, path)
    rollout_id, attempt_id = (await asyncio.to_thread(child.stdout.readline)).split()
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    store = SqliteStore(path)
    await store.open()
    (claim,) = await store.claim("w2", timeout_s=100)
    assert (claim.rollout.id, claim.attempt.fence) == (rollout_id, 2)
    first = claim.rollout.attempts[0]
    assert (first.id, first.status) == (attempt_id, AttemptStatus.LOST)
    assert len(await store.spans([rollout_id])) == 1
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="owners are known through flock")
async def test_second_holder_leaves_running_attempts_to_their_leases(store, path):
    living = await begin(store)
    lapsing = await begin(store, limits=Limits(lease_s=0.05, max_attempts=2))
    second = SqliteStore(path)
    await second.open()
    (claim,) = await store.claim("w2", timeout_s=100)
    assert (claim.rollout.id, claim.attempt.fence) == (lapsing.rollout.id, 2)
    await second.close()
    await succeed(store, living, [span(living)])
    (ended,) = await store.rollouts(RolloutQuery(ids=(living.rollout.id,)))
    assert ended.status is RolloutStatus.SUCCEEDED


async def test_behind_a_server_attempts_run_on_until_a_lease_has_passed(path):
    clock = ManualClock()
    store = SqliteStore(path, clock=clock, orphans="keep")
    await store.open()
    limits = Limits(lease_s=30, timeout_s=300, max_attempts=2)
    living, dead = await begin_all(store, 2, limits=limits)
    ended = await begin(store, limits=Limits(lease_s=30, timeout_s=20))
    await store.close()
    await clock.advance(100)
    await store.open()
    assert await store.heartbeat([ended.attempt.id]) == []
    await store.sweep()
    await succeed(store, ended, [span(ended)])
    await clock.advance(20)
    assert await store.heartbeat([living.attempt.id]) == []
    assert await store.claim("w2", timeout_s=0) == []
    await clock.advance(11)
    await store.sweep()
    (again,) = await store.claim("w2", timeout_s=0)
    assert (again.rollout.id, again.attempt.fence) == (dead.rollout.id, 2)
    await succeed(store, living)
    states = {one.id: one.status for one in await store.rollouts(RolloutQuery())}
    assert states.pop(dead.rollout.id) is RolloutStatus.RUNNING
    assert set(states.values()) == {RolloutStatus.SUCCEEDED}
    await store.close()


async def test_holders_of_one_file_work_for_each_other(store, path):
    second = SqliteStore(path)
    await second.open()
    claiming = asyncio.ensure_future(second.claim("w2"))
    (queued,) = await store.enqueue([rollout()])
    waiting = asyncio.ensure_future(store.wait([queued.id]))
    (claim,) = await asyncio.wait_for(claiming, 100)
    await succeed(second, claim)
    assert (await asyncio.wait_for(waiting, 100))[0].status is RolloutStatus.SUCCEEDED
    await second.close()


async def test_survivor_ends_the_attempts_of_a_holder_that_died(path):
    clock = ManualClock()
    survivor = SqliteStore(path, clock=clock)
    await survivor.open()
    dying = SqliteStore(path, clock=ManualClock())
    await dying.open()
    claim = await begin(dying, limits=Limits(lease_s=5))
    await clock.advance(10)
    (ended,) = await survivor.wait([claim.rollout.id], timeout_s=100)
    assert ended.attempts[-1].status is AttemptStatus.LOST
    await dying.close()
    await survivor.close()


async def test_own_writes_wake_waiters_without_a_second_look(store):
    store.poll_interval_s = math.inf
    claiming = asyncio.ensure_future(store.claim("w"))
    await asyncio.wait({claiming}, timeout=0.05)
    await store.enqueue([rollout()])
    (claim,) = await asyncio.wait_for(claiming, 100)
    waiting = asyncio.ensure_future(store.wait([claim.rollout.id]))
    await asyncio.wait({waiting}, timeout=0.05)
    await succeed(store, claim)
    assert len(await asyncio.wait_for(waiting, 100)) == 1


async def test_a_waiter_reads_what_it_knows_as_final_no_more(store, monkeypatch):
    claims = await begin_all(store, 3)
    ids = [claim.rollout.id for claim in claims]
    await succeed(store, claims[1])
    reads, enough = [], asyncio.Event()
    existing = store._BaseStore__existing

    async def counted(rollout_ids):
        reads.append(list(rollout_ids))
        if len(reads) > 1:
            enough.set()
        return await existing(rollout_ids)

    monkeypatch.setattr(store, "_BaseStore__existing", counted)
    store.poll_interval_s = 0.01
    waiting = asyncio.ensure_future(store.wait(ids))
    await asyncio.wait_for(enough.wait(), 100)
    assert reads[:2] == [ids, [ids[0], ids[2]]]
    for claim in (claims[0], claims[2]):
        await succeed(store, claim)
    assert [one.id for one in await asyncio.wait_for(waiting, 100)] == ids


async def test_attempt_ended_through_another_connection_is_no_longer_written_to(store, path):
    claim = await begin(store)
    await store.add_spans([span(claim)])
    second = SqliteStore(path)
    await second.open()
    await second.cancel([claim.rollout.id], reason="elsewhere")
    await second.close()
    assert await store.add_spans([span(claim)]) == Ingest(late=1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no database, but long enough to be read as a header of one" * 20, "not a store"),
        (None, "another program"),
    ],
)
async def test_file_of_something_else_is_left_alone(tmp_path, content, message):
    path = tmp_path / "other.db"
    if content is None:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE theirs (a)")
        connection.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(StoreError, match=message):
        await store.open()
    assert path.read_bytes() == before
    with pytest.raises(StoreError, match="open"):
        await store.enqueue([rollout()])


async def test_file_of_a_newer_release_names_the_upgrade(store, path):
    await store.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE schema SET version = ?", (SCHEMA_VERSION + 1,))
    connection.close()
    with pytest.raises(StoreError, match=f"schema {SCHEMA_VERSION + 1}.*upgrade"):
        await SqliteStore(path).open()


async def test_file_of_an_older_release_is_brought_up_to_date(store, path):
    (queued,) = await store.enqueue([rollout()])
    await store.close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("DROP TABLE lead")
        connection.execute("UPDATE schema SET version = 1")
    connection.close()
    await store.open()
    await store.lead("trainer", lease_s=60)
    assert [one.id for one in await store.rollouts(RolloutQuery())] == [queued.id]
    await store.close()
    await store.open()
    with pytest.raises(LeadHeldError, match="trainer"):
        await store.lead("other", lease_s=60)


async def test_a_clock_that_was_set_back_does_not_keep_a_lead_longer(path):
    ahead = SqliteStore(path, clock=ManualClock(1_000_000.0))
    await ahead.open()
    await ahead.lead("dead", lease_s=30)
    await ahead.close()
    clock = ManualClock(900_000.0)
    store = SqliteStore(path, clock=clock)
    await store.open()
    with pytest.raises(LeadHeldError) as refused:
        await store.lead("next", lease_s=30)
    assert refused.value.until == 900_030.0
    await clock.advance(31)
    await store.lead("next", lease_s=30)
    await store.close()


async def test_unusable_paths_name_the_fix(tmp_path):
    with pytest.raises(ConfigError, match="memory"):
        SqliteStore(":memory:")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(StoreError, match="writable"):
        await SqliteStore(blocked / "store.db").open()
    with pytest.raises(StoreError, match="writable"):
        await SqliteStore(tmp_path).open()


async def test_store_is_opened_once(store):
    with pytest.raises(StoreError, match="open already"):
        await store.open()


async def test_ten_megabytes_in_one_span(store):
    claim = await begin(store)
    large = span(claim, attributes={"text": "é" * 5_000_000})
    await succeed(store, claim, [large, span(claim, sequence=1)])
    assert (await store.spans([claim.rollout.id]))[0] == large


async def test_dropped_spans_give_their_space_back(store, path):
    claims = await begin_all(store, 20)
    for claim in claims:
        await succeed(store, claim, [span(claim, attributes={"text": "x" * 200_000})])
    await store.close()
    assert path.stat().st_size > 4_000_000
    dropping = SqliteStore(path, retention="drop_spans")
    await dropping.open()
    await dropping.consume([claim.rollout.id for claim in claims])
    while await asyncio.to_thread(free_pages, path):  # noqa: ASYNC110  in another thread
        await asyncio.sleep(0.01)
    await dropping.close()
    assert path.stat().st_size < 1_000_000


def test_a_file_that_gives_no_pages_back_is_not_asked_again(tmp_path):
    path = tmp_path / "given.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA auto_vacuum = NONE")
    connection.execute("CREATE TABLE notes (a)")
    connection.execute("INSERT INTO notes VALUES (zeroblob(100000))")
    connection.execute("DELETE FROM notes")
    settings = FileSettings(path=path, synchronous="normal", busy_timeout_s=1)
    writer = Writer(None, settings, now=lambda: 0.0, announce=print)
    assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 0
    assert not writer._reclaim(connection)
    connection.close()


def free_pages(path):
    connection = sqlite3.connect(path, timeout=20)
    try:
        return connection.execute("PRAGMA freelist_count").fetchone()[0]
    finally:
        connection.close()


async def test_many_callers_share_commits_and_none_is_answered_early(store, path):
    claims = await begin_all(store, 50)
    writes = [
        store.add_spans([model_call(claim, sequence=n) for n in range(3)]) for claim in claims
    ]
    assert await asyncio.gather(*writes) == [Ingest(accepted=3)] * 50
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM spans").fetchone() == (150,)
    connection.close()


async def test_cancelled_caller_does_not_stop_its_write(store):
    claim = await begin(store)
    task = asyncio.ensure_future(succeed(store, claim))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(await store.wait([claim.rollout.id], timeout_s=100)) == 1


class Group:
    """A group commit on a file, with jobs that note what they do."""

    def __init__(self, path):
        settings = FileSettings(path=path, synchronous="normal", busy_timeout_s=0.05)
        self.connection = connect(settings)
        prepare(self.connection, path)
        self.connection.execute("CREATE TABLE notes (a UNIQUE)")
        self.commit = GroupCommit(self.connection, settings, lambda: 0.0)

    def note(self, value, error=None):
        def operation(_):
            self.connection.execute("INSERT INTO notes VALUES (?)", (value,))
            if error is not None:
                raise error
            return value

        return WriteJob(operation, future=None)

    def refuse(self, error):
        def operation(_):
            raise error

        return WriteJob(operation, future=None)

    def notes(self):
        return {value for (value,) in self.connection.execute("SELECT a FROM notes")}


@pytest.fixture
def group(tmp_path):
    group = Group(tmp_path / "group.db")
    yield group
    group.connection.close()


def test_refusal_leaves_the_rest_of_its_group_alone(group):
    jobs = [group.note(1), group.refuse(StoreError("no")), group.note(2)]
    group.commit.run(jobs)
    assert group.notes() == {1, 2}
    assert [str(job.error) for job in jobs] == ["None", "no", "None"]
    assert [job.changes is not None for job in jobs] == [True, False, True]


def test_failure_halfway_is_undone_and_the_rest_of_its_group_kept(group):
    jobs = [group.note(1), group.note(2, KeyError("bug")), group.note(3)]
    group.commit.run(jobs)
    assert group.notes() == {1, 3}
    assert [type(job.error) for job in jobs] == [type(None), KeyError, type(None)]
    assert [job.value for job in jobs] == [1, None, 3]


def test_error_of_the_database_fails_its_job_only(group):
    jobs = [group.note(1), group.note(1), group.note(2)]
    group.commit.run(jobs)
    assert group.notes() == {1, 2}
    assert [type(job.error) for job in jobs] == [type(None), StoreError, type(None)]
    assert "disk has space" in str(jobs[1].error)


def test_busy_database_fails_the_whole_group_and_the_next_works(group, tmp_path):
    other = sqlite3.connect(tmp_path / "group.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    jobs = [group.note(1), group.note(2)]
    group.commit.run(jobs)
    assert all("busy" in str(job.error) for job in jobs)
    other.close()
    group.commit.run(jobs)
    assert group.notes() == {1, 2}
    assert [job.error for job in jobs] == [None, None]
