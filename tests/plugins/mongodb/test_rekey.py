"""``agl store rekey`` with a database: in place, repeatable, while runs write."""

from __future__ import annotations

import asyncio

import pytest
from agl_mongodb import MongoStore
from agl_mongodb._commit import Changeset
from agl_mongodb._connect import Collections, MongoServer
from agl_mongodb._documents import Documents
from agl_testing._store_samples import begin, span
from bson import encode

from agl_core.store import SPANS, encode_span

pytest.importorskip("cryptography")

from agl_encryption._rekey import rekey

from tests.installed import INSTALLED
from tests.plugins.encryption.keyring import NEW, OLD, encrypted, sealing
from tests.plugins.encryption.rekey_contract import BOTH, RekeyContract
from tests.plugins.encryption.test_stored import check, fill


@pytest.fixture
async def inner(options):
    store = MongoStore(options)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def collections(options, inner):
    with MongoServer.of(options).client() as client:
        yield Collections(MongoServer.of(options).database(client))


def raw(collections) -> bytes:
    """All documents of the database."""
    every = (collections.rollouts, collections.spans, collections.resources, collections.single)
    return b"".join(encode(document) for each in every for document in each.find())


class TestRekey(RekeyContract):
    """In place."""

    async def bodies(self, inner) -> bytes:
        with MongoServer.of(inner._options).client() as client:
            return raw(Collections(MongoServer.of(inner._options).database(client)))


@pytest.mark.parametrize("step", ["finish", "_delete"])
async def test_a_crash_within_a_write_is_completed_by_the_next_pass(
    inner, collections, step, monkeypatch
):
    filled = await fill(encrypted(inner))

    class DiedError(Exception):
        pass

    def dies(self, session):
        if self._changes.spans_replaced:
            raise DiedError
        return of_before(self, session)

    of_before = getattr(Changeset, step)
    with monkeypatch.context() as patched:
        patched.setattr(Changeset, step, dies)
        with pytest.raises(DiedError):
            await rekey(inner, sealing(BOTH))
    await check(encrypted(inner, BOTH), *filled)
    await rekey(inner, sealing(BOTH))
    await check(encrypted(inner, {"new": NEW}), *filled)
    assert b"\x03old" not in raw(collections)


async def test_spans_that_arrive_meanwhile_stay(inner, collections):
    """Another process adds a span between the read and the write."""
    claim = await begin(inner)
    first, second, late = (span(claim) for _ in range(3))
    await inner.add_spans([first, second])
    calls = []

    def work(records):
        blobs = [blob for each in records.spans([claim.rollout.id], None) for blob in each]
        kept = [(SPANS.decode(blob).id, blob) for blob in blobs if SPANS.decode(blob) != second]
        records.drop_spans([claim.rollout.id])
        assert records.known_spans(claim.attempt.id, [first.id]) == 0
        assert records.add_spans(claim.attempt.id, kept) == len(kept)
        assert records.known_spans(claim.attempt.id, [first.id, second.id]) == 1
        assert [*map(len, records.spans([claim.rollout.id], None))] == [len(kept)]
        if not calls:
            other = Documents(collections, now=0.0)
            other.add_spans(claim.attempt.id, [(late.id, encode_span(late))])
            Changeset(collections, other).write(None)
        calls.append(len(kept))

    await inner.write(work)
    assert {each.id for each in await inner.spans([claim.rollout.id])} == {first.id, late.id}
    assert calls[0] == 1


async def test_spans_of_a_rollout_that_ended_meanwhile_are_read_again(inner, collections):
    filled = await fill(encrypted(inner))
    pruned = []

    class Pruning:
        """Deletes the spans of the first rollout before they are encrypted again."""

        def __getattr__(self, name):
            return getattr(inner, name)

        async def write(self, work):
            def late(records):
                found = work(records)
                if records.spans_replaced and not pruned:
                    other = Documents(collections, now=0.0)
                    rollout = other.rollouts(["ro_1"])["ro_1"]
                    other.drop_spans(["ro_1"])
                    other.save_rollout(rollout)
                    Changeset(collections, other).write(None)
                    pruned.append(True)
                return found

            return await inner.write(late)

    await rekey(Pruning(), sealing(BOTH))
    assert pruned
    assert await inner.spans(["ro_1"]) == []
    both = encrypted(inner, {"new": NEW})
    assert await both.resources() == filled[1]


async def test_the_command_counts_and_repeats(inner, options, monkeypatch, agl):
    filled = await fill(encrypted(inner))
    others = [name for name in INSTALLED.split(",") if name not in ("encryption", "mongodb")]
    monkeypatch.setenv("AGL_DISABLE_PLUGINS", ",".join(others))
    monkeypatch.setenv("AGL_ENCRYPTION_KEYS", f"new:{NEW.hex()},old:{OLD.hex()}")

    async def command():
        return await asyncio.to_thread(agl, "store", "rekey", options.url)

    done = await command()
    assert done.exit_code == 0, done.output
    assert "encrypted with key new: 2 tasks, 2 attempts, 3 spans and 1 versions" in done.output
    assert "0 tasks, 0 attempts, 0 spans" in (await command()).output
    await check(encrypted(inner, {"new": NEW}), *filled)
