"""What disks, other programs and other releases do to a store's file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from agl_testing._store_samples import begin, begin_all, span, succeed

from agl_core.errors import StoreError
from agl_core.store import SPANS, encode
from agl_core.store import _sqlite as sqlite_module
from agl_core.store._sql import FileSettings, connect, prepare
from agl_core.store._sqlite import SqliteStore
from agl_core.store._writer import GroupCommit, WriteJob
from agl_core.types import RolloutQuery

LARGE = 200_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


async def filled(path, n=3):
    """A closed store with some rollouts."""
    store = SqliteStore(path)
    await store.open()
    for claim in await begin_all(store, n):
        await succeed(store, claim, [span(claim, attributes={"text": "x" * LARGE})])
    await store.close()


def large(claim):
    return span(claim, attributes={"text": os.urandom(LARGE // 2).hex()})


async def refusal(write):
    try:
        await write
    except StoreError as error:
        return error
    return None


class FullFile:
    """A file that may not grow, as on a disk without space."""

    def __init__(self, tmp_path, monkeypatch):
        self.path = tmp_path / "store.db"
        self._connections = []
        connect = sqlite_module.connect

        def limited(settings, *, read_only=False):
            connection = connect(settings, read_only=read_only)
            if not read_only:
                connection.execute("PRAGMA max_page_count = 200")
                self._connections.append(connection)
            return connection

        monkeypatch.setattr(sqlite_module, "connect", limited)

    def fill(self):
        """It is bounded from the start."""

    def free(self, store):
        def lift(_):
            self._connections[0].execute("PRAGMA max_page_count = 1000000")

        return store.submit(lift)

    def remove(self):
        """Nothing is left behind."""


class FullDisk:
    """A real disk, small enough to be filled."""

    def __init__(self, tmp_path, _):
        self._mount = tmp_path / "disk"
        self._mount.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(self._mount)]
        try:
            mounted = subprocess.run(command, capture_output=True, check=False)
        except OSError:
            pytest.skip("there is no mount here")
        if mounted.returncode:
            pytest.skip("a disk can only be mounted by root")
        self.path = self._mount / "store.db"
        self._filler = self._mount / "filler"

    def fill(self):
        with self._filler.open("wb") as file, contextlib.suppress(OSError):
            while file.write(bytes(65536)):
                file.flush()

    def free(self, store):
        self._filler.unlink()
        return store.submit(lambda _: None)

    def remove(self):
        subprocess.run(["umount", "-l", str(self._mount)], check=True)


@pytest.fixture(params=[FullFile, FullDisk])
def disk(request, tmp_path, monkeypatch):
    disk = request.param(tmp_path, monkeypatch)
    yield disk
    disk.remove()


async def test_a_full_disk_loses_nothing_that_was_acknowledged(disk, monkeypatch):
    store = SqliteStore(disk.path)
    await store.open()
    claim = await begin(store)
    kept = [large(claim)]
    await store.add_spans(kept)
    disk.fill()
    more = [large(claim) for _ in range(50)]
    answers = [await refusal(store.add_spans([one])) for one in more]
    kept += [one for one, answer in zip(more, answers, strict=True) if answer is None]
    assert re.search(rf"space.*{disk.path}.*free some", str(answers[-1]))

    runs = []
    run = GroupCommit.run

    def counted(self, jobs, **how):
        runs.append(1)
        return run(self, jobs, **how)

    monkeypatch.setattr(GroupCommit, "run", counted)
    refused = [large(claim) for _ in range(5)]
    answers = await asyncio.gather(*(refusal(store.add_spans([one])) for one in refused))
    assert None not in answers
    assert len(runs) <= 2 * len(refused)
    assert await store.spans([claim.rollout.id]) == kept

    await disk.free(store)
    assert (await store.add_spans(refused)).accepted == len(refused)
    await succeed(store, claim)
    await store.close()
    again = SqliteStore(disk.path)
    await again.open()
    assert await again.spans([claim.rollout.id]) == kept + refused
    await again.close()


FILLS = """
    import asyncio, resource, sys
    from agl_core.errors import StoreError
    from agl_core.store._sqlite import SqliteStore
    from agl_testing._store_samples import begin, span

    async def main(path):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
        store = SqliteStore(path)
        await store.open()
        claim = await begin(store)
        kept = 0
        try:
            while True:
                one = span(claim, id=f"s{kept:03}", attributes={"text": "x" * 100_000})
                await store.add_spans([one])
                kept += 1
        except StoreError as error:
            assert path in str(error), error
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        await store.add_spans([span(claim, id="last")])
        print(claim.rollout.id, kept, flush=True)
        await store.close()

    asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
async def test_a_write_that_fails_halfway_is_undone_and_the_next_one_works(path):
    command = [sys.executable, "-c", textwrap.dedent(FILLS), str(path)]
    ran = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True)
    rollout_id, kept = ran.stdout.split()
    store = SqliteStore(path)
    await store.open()
    spans = await store.spans([rollout_id.decode()])
    assert [one.id for one in spans] == ["last", *(f"s{n:03}" for n in range(int(kept)))]
    await store.close()


def test_a_rollback_that_fails_is_made_up_for(path):
    settings = FileSettings(path=path, synchronous="normal", busy_timeout_s=1)
    connection = Failing(connect(settings))
    prepare(connection, path)
    commit = GroupCommit(connection, settings, lambda: 0.0)

    def write(_):
        connection.execute("INSERT INTO lead VALUES (x'00')")

    def fail(operations):
        write(operations)
        connection.fails = 2
        raise sqlite3.OperationalError("disk I/O error")

    jobs = [WriteJob(write, None), WriteJob(fail, None), WriteJob(write, None)]
    commit.run(jobs)
    assert all("disk I/O error" in str(job.error) for job in jobs)
    commit.run(jobs[::2])
    assert [job.error for job in jobs[::2]] == [None, None]
    assert connection.execute("SELECT count(*) FROM lead").fetchone() == (2,)
    connection.close()


class Failing:
    """A connection whose next rollbacks fail."""

    def __init__(self, connection):
        self._connection = connection
        self.fails = 0

    def execute(self, statement, *values):
        if statement == "ROLLBACK" and self.fails:
            self.fails -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(statement, *values)

    def __getattr__(self, name):
        return getattr(self._connection, name)


async def test_a_file_that_another_program_keeps_locked_is_named(path):
    await filled(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    store = SqliteStore(path, busy_timeout_s=0.05)
    with pytest.raises(StoreError, match=rf"busy.*{path}.*0\.05 s.*busy_timeout_s"):
        await store.open()
    other.close()
    await store.open()
    assert len(await store.rollouts(RolloutQuery())) == 3
    await store.close()


@pytest.mark.parametrize("share", [0.3, 0.7], ids=["most lost", "some lost"])
async def test_a_truncated_file_is_told_and_left_alone(path, share):
    await filled(path)
    size = int(path.stat().st_size * share)
    os.truncate(path, size)
    with pytest.raises(StoreError, match=rf"{path} is damaged.*recover.*another store\.path"):
        await SqliteStore(path).open()
    assert path.stat().st_size == size


async def test_damage_that_is_found_later_is_told_and_the_rest_is_read(path):
    await filled(path)
    connection = sqlite3.connect(path)
    (root,) = connection.execute(
        "SELECT rootpage FROM sqlite_master WHERE name = 'spans'"
    ).fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((root - 1) * page)
        file.write(b"\xff" * page)
    store = SqliteStore(path)
    await store.open()
    found = await store.rollouts(RolloutQuery())
    for _ in range(2):
        with pytest.raises(StoreError, match=r"store\.db is damaged"):
            await store.spans([found[0].id])
    assert await store.rollouts(RolloutQuery()) == found
    claim = await begin(store)
    with pytest.raises(StoreError, match=r"store\.db is damaged"):
        await store.add_spans([span(claim)])
    await store.close()


async def test_a_record_that_cannot_be_read_is_named(path):
    await filled(path)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE rollouts SET body = x'c1'")
    connection.close()
    store = SqliteStore(path)
    await store.open()
    with pytest.raises(StoreError, match="stored Rollout cannot be read"):
        await store.rollouts(RolloutQuery())
    await store.close()


@pytest.mark.parametrize("content", [b"xy", b"hello" * 40, b"\x00" * 5000])
async def test_short_and_blank_files_are_no_stores(path, content):
    path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"{path} is not a store"):
        await SqliteStore(path).open()
    assert path.read_bytes() == content


READS_ONLY = """
    import asyncio, os, sys
    from agl_core.errors import StoreError
    from agl_core.store._sqlite import SqliteStore
    from agl_testing._store_samples import begin

    async def main(path, warm):
        store = SqliteStore(warm)
        await store.open()
        await store.close()
        if os.geteuid() == 0:
            os.setuid(65534)
        store = SqliteStore(path)
        try:
            await store.open()
            await begin(store)
        except StoreError as error:
            print(error, flush=True)

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="permissions are others there")
@pytest.mark.parametrize("locked", ["file", "folder"])
async def test_what_may_not_be_written_is_named_with_the_fix(tmp_path, locked):
    folder = tmp_path / "kept"
    folder.mkdir()
    path = folder / "store.db"
    await filled(path, 1)
    for above in (tmp_path, *tmp_path.parents[:-1]):
        if above.stat().st_uid == os.getuid():
            above.chmod(above.stat().st_mode | 0o055)
    if locked == "file":
        folder.chmod(0o777)
        path.with_name("store.db-owners").chmod(0o666)
        path.chmod(0o444)
    else:
        folder.chmod(0o555)
    command = [sys.executable, "-c", textwrap.dedent(READS_ONLY), str(path), str(tmp_path / "w")]
    ran = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, check=True)
    folder.chmod(0o777)
    told = ran.stdout.decode()
    assert str(path) in told
    assert "writable" in told


async def test_encoded_spans_are_in_order_and_only_decoding_finds_what_is_damaged(path):
    store = SqliteStore(path)
    await store.open()
    claim = await begin(store)
    odd = span(claim, sequence=1, name="\ud800", attributes={"\ud800": 2**80})
    sent = [span(claim, sequence=2), odd, span(claim, sequence=1), span(claim, start_ns=-1)]
    await store.add_spans(sent)
    ids = [claim.rollout.id]
    expected = await store.spans(ids)
    assert expected == sorted(sent, key=lambda one: one.order)
    assert [SPANS.decode(blob) for blob in await store.encoded_spans(ids)] == expected
    assert await store.encoded_spans(ids, attempt_id="another") == []
    damaged = encode({"id": "span_0", "attributes": []})
    await store.write(lambda records: records.add_spans(claim.attempt.id, [("span_0", damaged)]))
    assert damaged in await store.encoded_spans(ids)
    with pytest.raises(StoreError, match="stored Span cannot be read"):
        await store.spans(ids)
    await store.write(lambda records: records.add_spans(claim.attempt.id, [("span_1", b"\xc1")]))
    with pytest.raises(StoreError, match="stored Span cannot be read"):
        await store.encoded_spans(ids)
    await store.close()
