"""``agl store copy``: the records of a store in another one."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from agl_remote import StoreServer
from agl_stores import copy_store
from agl_testing._store_samples import begin
from msgspec.structs import replace

from agl_core.config import RunConfig
from agl_core.config.loader import save_config
from agl_core.errors import StoreError
from agl_core.store import MemoryStore, Records
from agl_core.store._sqlite import SqliteStore
from agl_core.types import (
    AttemptStatus,
    Resources,
    RolloutQuery,
    RolloutStatus,
)
from agl_core.types.json_text import json_value
from tests.plugins.records.filled import ODD, fill


@pytest.fixture
async def run(tmp_path):
    """The directory of a run that ended by a crash."""
    directory = tmp_path / "agl_runs" / "run"
    directory.mkdir(parents=True)
    save_config(RunConfig(), directory)
    store = SqliteStore(directory / "store.db")
    await store.open()
    await fill(store)
    await store.close()
    return directory


async def in_thread(agl, *arguments):
    """The command runs a loop of its own."""
    return await asyncio.to_thread(agl, *arguments)


async def content(path):
    store = SqliteStore(path).reader()
    await store.open()
    try:
        rollouts = await store.rollouts(RolloutQuery())
        spans = await store.encoded_spans([each.id for each in rollouts])
        versions = [await store.read(lambda r, n=n: r.resources(n)) for n in range(1, 5)]
    finally:
        await store.close()
    return rollouts, spans, versions


async def test_everything_is_copied_and_compared(agl, run, tmp_path):
    target = tmp_path / "copy.db"

    result = await in_thread(agl, "store", "copy", run, target)

    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [line[:4] for line in lines] == [
        ["resources", "3", "3", "3"],
        ["rollouts", "7", "7", "7"],
        ["attempts", "5", "5", "5"],
        ["spans", "8", "8", "8"],
    ]
    assert all(line[4] == line[5] and line[6] == "same" for line in lines)
    rollouts, spans, versions = await content(run / "store.db")
    copied, copied_spans, copied_versions = await content(target)
    assert copied_spans == spans
    assert copied_versions == versions
    for one, other in zip(rollouts, copied, strict=True):
        if one.status is not RolloutStatus.RUNNING:
            assert one == other
            continue
        (attempt,) = other.attempts
        assert other.status is RolloutStatus.QUEUED
        assert attempt.status is AttemptStatus.LOST
        assert attempt.ended_at == one.attempts[0].lease_until


async def test_workers_get_copied_rollouts_in_the_same_order(agl, run, tmp_path):
    assert (await in_thread(agl, "store", "copy", run, tmp_path / "new" / "run")).exit_code == 0

    store = SqliteStore(tmp_path / "new" / "run" / "store.db")
    await store.open()
    claims = await store.claim("w", limit=9, timeout_s=0.0)
    await store.close()
    assert [claim.rollout.id for claim in claims] == [f"ro_{ODD}", "ro_c", "ro_a", "ro_b"]


async def test_a_copy_may_be_repeated(agl, run, tmp_path):
    target = tmp_path / "copy.db"
    first = await in_thread(agl, "store", "copy", run, target)
    before = await content(target)

    again = await in_thread(agl, "store", "copy", run, target, "--json", "-")

    assert first.exit_code == again.exit_code == 0, again.output
    figures = json_value(again.stdout)
    assert {kind: figure["before"] for kind, figure in figures.items()} == {
        "resources": 3,
        "rollouts": 7,
        "attempts": 5,
        "spans": 8,
    }
    assert all(figure["same"] for figure in figures.values())
    assert await content(target) == before


class _Breaks(SqliteStore):
    """A store that fails at one of its writes."""

    left = 0

    async def write(self, work):
        self.left -= 1
        if self.left == 0:
            raise StoreError("the server is gone")
        return await super().write(work)


async def test_an_interrupted_copy_is_completed(run, tmp_path, monkeypatch):
    monkeypatch.setattr("agl_stores._copy._PAGE", 2)
    target = tmp_path / "copy.db"
    source = SqliteStore(run / "store.db").reader()
    await source.open()
    try:
        for fails_at in (1, 3, 5, 7, 8, 9, 10, 11):
            store = _Breaks(target)
            await store.open()
            store.left = fails_at
            try:
                with pytest.raises(StoreError, match="the server is gone"):
                    await copy_store(source, store)
            except pytest.fail.Exception:
                break  # nothing was left to write
            finally:
                await store.close()
        else:
            raise AssertionError("the copy never ended")
        store = SqliteStore(target)
        await store.open()
        copied = await copy_store(source, store)
        claims = await store.claim("w", limit=9, timeout_s=0.0)
        await store.close()
    finally:
        await source.close()
    assert all(each.same and each.before == each.source for each in copied)
    assert [claim.rollout.id for claim in claims] == [f"ro_{ODD}", "ro_c", "ro_a", "ro_b"]


async def test_one_run_is_chosen_with_the_resources_it_uses(agl, run, tmp_path):
    target = tmp_path / "copy.db"

    result = await in_thread(agl, "store", "copy", run, target, "--run", "other")

    assert result.exit_code == 0, result.output
    rollouts, spans, versions = await content(target)
    assert [each.run_id for each in rollouts] == ["other"]
    assert len(spans) == 1
    assert [each and each.version for each in versions] == [None, None, 3, None]
    rest = await in_thread(agl, "store", "copy", run, target)
    assert rest.exit_code == 0, rest.output
    unknown = await in_thread(agl, "store", "copy", run, target, "--run", "nope")
    assert unknown.exit_code == 1
    assert "no rollouts of run 'nope'" in unknown.output


async def test_other_content_under_the_same_ids_is_refused(agl, run, tmp_path):
    target = tmp_path / "copy.db"
    shutil.copy(run / "store.db", target)
    store = SqliteStore(target)
    await store.open()  # queues what ran, at another time than that of the copy
    await store.close()
    before = await content(target)

    result = await in_thread(agl, "store", "copy", run, target)

    assert result.exit_code == 1
    assert "is in the destination with other content (attempts)" in result.output
    assert "Nothing was copied" in result.output
    assert await content(target) == before


async def test_other_resources_under_the_same_version_are_refused(agl, run, tmp_path):
    target = tmp_path / "copy.db"
    store = SqliteStore(target)
    await store.open()
    await store.publish(Resources(run_id="mine", items={}))
    await store.close()

    result = await in_thread(agl, "store", "copy", run, target)

    assert result.exit_code == 1
    assert "Version 1 of the resources (run 'run') has other content" in result.output
    assert (await content(target))[0] == []


async def test_an_attempt_of_another_rollout_is_refused(run, tmp_path):
    source = SqliteStore(run / "store.db").reader()
    store = SqliteStore(tmp_path / "copy.db")
    await source.open()
    await store.open()
    claim = await begin(store)
    (known, *_) = [each for each in await source.rollouts(RolloutQuery()) if each.attempts]

    def steal(records: Records) -> None:
        (attempt,) = records.rollouts([claim.rollout.id])[claim.rollout.id].attempts
        records.drop_attempt(attempt.id)
        stolen = replace(known.attempts[0], rollout_id=claim.rollout.id)
        records.save_attempt(stolen, due_at=0.0)

    await store.write(steal)
    with pytest.raises(StoreError, match="belongs to rollout"):
        await copy_store(source, store)
    await store.close()
    await source.close()


async def test_a_store_that_is_trained_on_is_copied_on_request_only(agl, run, tmp_path):
    store = SqliteStore(run / "store.db")
    await store.open()
    await store.lead("trainer-1", lease_s=600.0)
    target = tmp_path / "copy.db"

    refused = await in_thread(agl, "store", "copy", run, target)
    told = await in_thread(agl, "store", "copy", run, target, "--live")

    assert refused.exit_code == 1
    assert "A trainer leads the source (trainer-1)" in refused.output
    assert told.exit_code == 0, told.output
    back = await in_thread(agl, "store", "copy", target, run)
    assert back.exit_code == 1
    assert "A trainer leads the destination (trainer-1)" in back.output
    await store.lead("trainer-1", lease_s=0.0)
    assert (await in_thread(agl, "store", "copy", run, target)).exit_code == 0
    copy = SqliteStore(target)
    await copy.open()
    await copy.lead("anyone", lease_s=1.0)  # neither the lead nor that of the copy is left
    await copy.close()
    await store.close()


async def test_a_served_store_is_copied_but_takes_no_copies(agl, run, tmp_path, monkeypatch):
    monkeypatch.setenv("AGL_API_KEY", "k" * 40)
    server = StoreServer(SqliteStore(run / "store.db", orphans="keep"), key="k" * 40)
    await server.start()
    target = tmp_path / "copy.db"
    try:
        result = await in_thread(agl, "store", "copy", server.url, target)
        back = await in_thread(agl, "store", "copy", target, server.url)
        store = server._store
        await store.lead("trainer-1", lease_s=600.0)
        led = await in_thread(agl, "store", "copy", server.url, tmp_path / "other.db")
    finally:
        await server.stop()

    assert result.exit_code == 0, result.output
    assert result.stdout.count("same") == 4
    assert back.exit_code == 2
    assert "takes no copies" in back.output
    assert led.exit_code == 1
    assert "A trainer leads the source" in led.output
    assert (await content(target))[1] == (await content(run / "store.db"))[1]


async def test_wrong_stores_are_one_line_each(agl, run, tmp_path):
    (tmp_path / "other.txt").write_text("no store")
    for source, target, said in (
        (run, run / "store.db", "are the same store"),
        (run, run, "are the same store"),
        (tmp_path / "none", run, "no such file or directory exists"),
        ("ftp://host/x", run, "is not the address of a store"),
        (run, "ftp://host/x", "is not the address of a store"),
        (run, tmp_path / "none.toml", "does not exist"),
        (run, tmp_path / "other.txt", "file is not a database"),
    ):
        result = await in_thread(agl, "store", "copy", source, target)
        assert result.exit_code in (1, 2), result.output
        assert said in result.output
        assert len(result.output.strip().splitlines()) == 1


async def test_a_store_in_memory_can_be_copied(tmp_path):
    source, store = MemoryStore(), SqliteStore(tmp_path / "copy.db")
    await source.open()
    await store.open()
    await fill(source)

    copied = await copy_store(source, store)

    assert all(each.same for each in copied)
    await store.close()
    await source.close()
