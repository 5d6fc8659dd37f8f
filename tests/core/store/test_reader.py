"""Looking at a file changes nothing in it, whoever else holds it."""

from __future__ import annotations

import math
import os
import sqlite3

import pytest
from agl_stores import locate_store
from agl_testing._store_samples import begin, model_call, rollout, succeed
from agl_testing.clock import ManualClock

from agl_core._builtin import load_plugins
from agl_core.errors import StoreError
from agl_core.store._records import Readable
from agl_core.store._sqlite import SqliteStore
from agl_core.types import AttemptStatus, RolloutQuery, RolloutStatus


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a b#?" / "store.db"


async def crashed(path):
    """A file whose holder left an attempt running."""
    store = SqliteStore(path)
    await store.open()
    claim = await begin(store)
    await store.add_spans([model_call(claim)])
    await store.close()
    return claim


async def test_attempts_that_a_crash_left_running_are_still_running_after_a_look(path):
    claim = await crashed(path)
    reader = SqliteStore(path).reader()

    await reader.open()
    (seen,) = await reader.rollouts(RolloutQuery())
    spans = await reader.spans([claim.rollout.id])
    await reader.close()

    assert seen.status is RolloutStatus.RUNNING
    assert [span.attempt_id for span in spans] == [claim.attempt.id]
    again = SqliteStore(path)
    await again.open()
    (found,) = await again.rollouts(RolloutQuery())
    await again.close()
    assert found.attempts[0].status is AttemptStatus.LOST


async def test_a_live_run_is_seen_and_goes_on(path):
    store = SqliteStore(path)
    await store.open()
    claim = await begin(store)
    reader = SqliteStore(path).reader()
    await reader.open()

    await succeed(store, claim, [model_call(claim)])

    (done,) = await reader.wait([claim.rollout.id])
    assert done.status is RolloutStatus.SUCCEEDED
    await reader.close()
    await store.close()


async def test_overdue_attempts_are_left_to_those_who_take_part(path):
    claim = await crashed(path)
    reader = SqliteStore(path, clock=ManualClock()).reader()

    await reader.open()
    (left,) = await reader.wait([claim.rollout.id], timeout_s=0) or [None]
    await reader.close()

    assert left is None


async def test_a_clock_that_was_set_is_nothing_to_a_reader(path, caplog):
    claim = await crashed(path)
    reader = SqliteStore(path).reader()
    await reader.open()

    await reader.restart_timers()
    assert await reader.sweep() == math.inf
    (seen,) = await reader.rollouts(RolloutQuery())
    await reader.close()

    assert seen.attempts[0].lease_until == claim.attempt.lease_until
    assert caplog.records == []


async def test_a_reader_writes_nothing(path):
    claim = await crashed(path)
    reader = SqliteStore(path).reader()
    assert isinstance(SqliteStore(path), Readable)
    await reader.open()

    with pytest.raises(StoreError, match="opened for reading"):
        await reader.enqueue([rollout()])
    with pytest.raises(StoreError, match="opened for reading"):
        await reader.claim("w", timeout_s=0)
    with pytest.raises(StoreError, match="opened for reading"):
        await succeed(reader, claim)
    with pytest.raises(StoreError, match="open already"):
        await reader.open()
    await reader.close()


async def test_what_is_no_store_is_told_and_never_made(path):
    reader = SqliteStore(path).reader()
    with pytest.raises(StoreError, match="does not exist"):
        await reader.open()
    assert not path.exists()

    path.parent.mkdir()
    path.write_bytes(b"no database" * 200)
    with pytest.raises(StoreError, match="is not a store"):
        await reader.open()

    path.unlink()
    sqlite3.connect(path).close()
    path.touch()
    with pytest.raises(StoreError, match="is no store"):
        await reader.open()


async def test_a_newer_file_is_told(path):
    await crashed(path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE schema SET version = 99")
    connection.commit()
    connection.close()

    with pytest.raises(StoreError, match="newer agl-core"):
        await SqliteStore(path).reader().open()


def test_a_bare_file_is_found_with_its_folder(tmp_path):
    file = tmp_path / "store.db"
    file.touch()

    for target in (file, tmp_path, os.path.relpath(file)):
        address = locate_store(target, load_plugins())
        assert address.file is not None
        assert address.file.samefile(file)
        assert address.run is None
