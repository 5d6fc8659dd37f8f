"""``agl store rekey``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agl_encryption import EncryptionError
from agl_encryption._rekey import Rekeyed, rekey

from agl_core.errors import StoreError
from agl_core.store import MemoryStore, SqliteStore
from agl_core.types import AttemptStatus, Rollout, RolloutQuery, Task
from tests.plugins.encryption.keyring import NEW, OLD, encrypted, sealing, without_keys
from tests.plugins.encryption.test_stored import PLANTED, check, fill, task

BOTH = {"new": NEW, "old": OLD}


@pytest.fixture
async def inner(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


def stored_words(raw: bytes) -> list[str]:
    return [word for word in " ".join(PLANTED.values()).split() if word.encode() in raw]


async def bodies(store) -> bytes:
    """What the rows of the store hold."""

    def read(records) -> bytes:
        from agl_core.store import encode

        rollouts = records.select(RolloutQuery())
        spans = [blob for one in records.spans([r.id for r in rollouts], None) for blob in one]
        resources = records.resources(records.latest_version())
        return b"".join([*map(encode, rollouts), *spans, encode(resources)])

    return await store.read(read)


@pytest.mark.parametrize("before", [without_keys, encrypted])
async def test_everything_has_the_new_key_afterwards(inner, before) -> None:
    filled = await fill(before(inner))
    done = await rekey(inner, sealing(BOTH))
    assert done == Rekeyed(rollouts=2, attempts=2, spans=3, resources=1)
    raw = await bodies(inner)
    assert stored_words(raw) == []
    assert b"\x03old" not in raw
    await check(encrypted(inner, {"new": NEW}), *filled)
    again = await rekey(inner, sealing(BOTH))
    assert again == Rekeyed(kept=6)
    assert await bodies(inner) == raw
    every = await rekey(inner, sealing({"new": NEW}), everything=True)
    assert every == Rekeyed(rollouts=2, spans=3, resources=1, kept=0)
    assert await bodies(inner) != raw
    await check(encrypted(inner, {"new": NEW}), *filled)


async def test_statuses_running_attempts_and_repeated_ends_stay(inner) -> None:
    store = encrypted(inner)
    await store.enqueue([Rollout(id=f"ro_{n}", task=task(), run_id="r") for n in range(4)])
    done, running, cancelled = await store.claim("w", limit=3)
    await store.finish(done.attempt.id, status=AttemptStatus.SUCCEEDED, output="x")
    await store.consume([done.rollout.id])
    await store.cancel([cancelled.rollout.id], reason="not needed")
    before = await store.rollouts(RolloutQuery())
    await rekey(inner, sealing(BOTH))
    both = encrypted(inner, BOTH)
    assert await both.rollouts(RolloutQuery()) == before
    old = encrypted(inner, BOTH, active="old")
    ended = await old.finish(done.attempt.id, status=AttemptStatus.SUCCEEDED, output="x")
    assert ended.output == "x"
    assert await both.heartbeat([running.attempt.id]) == []
    ended = await both.finish(running.attempt.id, status=AttemptStatus.SUCCEEDED, output="y")
    assert ended.output == "y"
    (left,) = await both.claim("w", limit=3, timeout_s=0)
    assert left.rollout.task == task()


async def test_an_interrupted_pass_continues_where_it_was(inner) -> None:
    store = encrypted(inner)
    await store.enqueue([Rollout(id=f"ro_{n:03}", task=task(), run_id="r") for n in range(50)])

    class StopError(Exception):
        pass

    def stop(done: Rekeyed) -> None:
        if done.rollouts >= 40:
            raise StopError

    with pytest.raises(StopError):
        await rekey(inner, sealing(BOTH), report=stop)
    rest = await rekey(inner, sealing(BOTH))
    assert (rest.rollouts, rest.kept) == (10, 40)
    found = await encrypted(inner, {"new": NEW}).rollouts(RolloutQuery())
    assert len(found) == 50


async def test_a_key_that_is_missing_changes_nothing_of_its_batch(inner) -> None:
    store = encrypted(inner)
    await fill(store)
    await encrypted(inner, {"new": NEW}).enqueue([Rollout(id="ro_0", task=task(), run_id="r")])
    raw = await bodies(inner)
    with pytest.raises(EncryptionError, match="'old', which is not here"):
        await rekey(inner, sealing({"new": NEW}))
    assert await bodies(inner) == raw


async def test_a_run_may_write_meanwhile(inner) -> None:
    store = encrypted(inner, BOTH)
    await encrypted(inner).enqueue(
        [Rollout(id=f"ro_{n:03}", task=task(), run_id="r") for n in range(60)]
    )

    async def run() -> None:
        while claims := await store.claim("w", limit=5, timeout_s=0):
            for claim in claims:
                await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, output="x")

    await asyncio.gather(run(), rekey(inner, sealing(BOTH)))
    await rekey(inner, sealing(BOTH))
    found = await encrypted(inner, {"new": NEW}).rollouts(RolloutQuery())
    assert {rollout.attempts[0].output for rollout in found} == {"x"}


async def test_a_store_that_cannot_replace_records_says_so() -> None:
    store = MemoryStore()
    await store.open()
    await encrypted(store).enqueue([Rollout(id="ro_1", task=Task(id="t", input=1), run_id="r")])
    with pytest.raises(StoreError, match="cannot replace what it holds"):
        await rekey(store, sealing(BOTH))
    (found,) = await encrypted(store).rollouts(RolloutQuery())
    assert found.task.input == 1
    await store.close()


async def test_the_command_counts_and_repeats(tmp_path: Path, monkeypatch, agl) -> None:
    path = tmp_path / "store.db"
    store = encrypted(SqliteStore(path))
    await store.open()
    filled = await fill(store)
    await store.close()

    def command(*line: str):
        return asyncio.to_thread(agl, "store", "rekey", str(path), *line)

    assert "There is no encryption key" in (await command()).output
    monkeypatch.setenv("AGL_ENCRYPTION_KEYS", f"new:{NEW.hex()}")
    assert "add the key to AGL_ENCRYPTION_KEYS" in (await command()).output
    monkeypatch.setenv("AGL_ENCRYPTION_KEYS", f"new:{NEW.hex()},old:{OLD.hex()}")
    done = await command()
    assert done.exit_code == 0, done.output
    assert "encrypted with key new: 2 tasks, 2 attempts, 3 spans and 1 versions" in done.output
    assert "0 tasks, 0 attempts, 0 spans" in (await command()).output
    assert "2 tasks, 0 attempts, 3 spans" in (await command("--all")).output
    store = encrypted(SqliteStore(path), {"new": NEW})
    await store.open()
    await check(store, *filled)
    await store.close()


def test_a_new_key_is_printed(agl, monkeypatch) -> None:
    key = agl("store", "key").output.strip()
    monkeypatch.setenv("AGL_ENCRYPTION_KEY", key)
    assert agl("store", "key").output.strip() != key


async def test_a_served_store_is_refused(agl, monkeypatch) -> None:
    monkeypatch.setenv("AGL_ENCRYPTION_KEY", OLD.hex())
    monkeypatch.setenv("AGL_API_KEY", "k" * 32)
    refused = await asyncio.to_thread(agl, "store", "rekey", "http://localhost:9")
    assert "is another process: run agl store rekey with the file" in refused.output
