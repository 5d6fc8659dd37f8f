"""``agl store rekey``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agl_encryption import EncryptionError
from agl_encryption._rekey import rekey

from agl_core.errors import StoreError
from agl_core.store import MemoryStore, SqliteStore
from agl_core.types import AttemptStatus, Rollout, RolloutQuery, Task
from tests.plugins.encryption.keyring import NEW, OLD, encrypted, sealing
from tests.plugins.encryption.rekey_contract import BOTH, RekeyContract
from tests.plugins.encryption.test_stored import check, fill, task


@pytest.fixture
async def inner(tmp_path):
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    yield store
    await store.close()


class TestRekey(RekeyContract):
    """Over a file."""


async def test_a_key_that_is_missing_changes_nothing_of_its_batch(inner) -> None:
    store = encrypted(inner)
    await fill(store)
    await encrypted(inner, {"new": NEW}).enqueue([Rollout(id="ro_0", task=task(), run_id="r")])
    raw = await RekeyContract().bodies(inner)
    with pytest.raises(EncryptionError, match="'old', which is not here"):
        await rekey(inner, sealing({"new": NEW}))
    assert await RekeyContract().bodies(inner) == raw


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
