"""Refusals of a server, conflicts of processes, and writes that a crash cuts."""

from __future__ import annotations

import ssl

import pytest
from agl_mongodb import MongoOptions, MongoStore
from agl_mongodb._commit import Changeset, Committer
from agl_mongodb._connect import Collections, MongoServer
from agl_mongodb._documents import Documents
from agl_mongodb._errors import Conflict, MongoAddress, as_store_error
from agl_testing._store_samples import begin, begin_all, rollout, span, succeed
from pymongo import errors
from pymongo.errors import AutoReconnect

from agl_core.errors import StaleAttemptError, StoreError
from agl_core.types import AttemptStatus, Limits, Resources, RolloutQuery, RolloutStatus
from tests.plugins.mongodb.conftest import REAL
from tests.plugins.mongodb.servers import StandIn

stand_in_only = pytest.mark.skipif(bool(REAL), reason="needs a server of its own")


@pytest.fixture
async def store(options):
    store = MongoStore(options)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def collections(options, store):
    with MongoServer.of(options).client() as client:
        yield Collections(MongoServer.of(options).database(client))


async def test_a_store_of_a_later_release_is_refused(options, store, collections):
    await store.enqueue([rollout()])
    collections.single.update_one({"_id": "schema"}, {"$set": {"version": 99}})
    for other in (MongoStore(options), MongoStore(options).reader()):
        with pytest.raises(StoreError, match=r"newer agl-core \(schema 99"):
            await other.open()
    with pytest.raises(StoreError, match="newer agl-core"):
        await MongoStore(options).prune([])


async def test_a_database_without_a_store_is_not_read(options):
    with pytest.raises(StoreError, match="There is no store in"):
        await MongoStore(options).reader().open()


async def test_a_reader_changes_nothing(options, store):
    claim = await begin(store)
    reader = MongoStore(options).reader()
    await reader.open()
    (found,) = await reader.rollouts(RolloutQuery())
    assert found.status is RolloutStatus.RUNNING
    for refused in (
        reader.enqueue([rollout()]),
        reader.write(lambda records: records.drop_attempt(claim.attempt.id)),
    ):
        with pytest.raises(StoreError, match="opened for reading"):
            await refused
    await reader.close()
    assert await store.heartbeat([claim.attempt.id]) == []


async def test_spans_of_final_rollouts_are_pruned(options, store):
    done, running = await begin_all(store, 2)
    await store.add_spans([span(running)])
    await succeed(store, done, [span(done), span(done)])
    ids = [done.rollout.id, running.rollout.id, "ro_unknown"]

    would = await MongoStore(options).prune(ids, dry_run=True)
    assert len(await store.spans(ids[:2])) == 3
    did = await MongoStore(options).prune(ids)

    assert would == did
    assert (did.rollouts, did.spans, did.kept) == (1, 2, 1)
    assert did.size > 0
    assert len(await store.spans(ids[:2])) == 1
    (rollout_,) = await store.rollouts(RolloutQuery(ids=(done.rollout.id,)))
    assert rollout_.consumed


async def test_a_write_that_was_overtaken_runs_again(store, collections):
    """Another process ends the attempt between the read and the write."""
    claim = await begin(store)
    calls = []

    def work(records):
        rollout_ = records.rollouts([claim.rollout.id])[claim.rollout.id]
        calls.append(rollout_.status)
        if len(calls) == 1:
            other = Documents(collections, now=0.0)
            other.save_rollout(rollout_.__class__(**_fields(rollout_, RolloutStatus.CANCELLED)))
            Changeset(collections, other).write(None)
        records.add_spans(claim.attempt.id, [("sp", b"\x80")])
        records.save_rollout(rollout_)

    await store.write(work)
    assert calls == [RolloutStatus.RUNNING, RolloutStatus.CANCELLED]
    assert collections.spans.count_documents({}) == 1


def _fields(record, status):
    return {**{name: getattr(record, name) for name in record.__struct_fields__}, "status": status}


async def test_spans_of_an_attempt_that_ended_meanwhile_are_late(store, collections):
    claim = await begin(store)

    def work(records):
        records.add_spans(claim.attempt.id, [("sp", b"\x80")])
        if records.owner(claim.attempt.id).running and not ended:
            ended.append(True)
            other = Documents(collections, now=0.0)
            found = other.rollouts([claim.rollout.id])[claim.rollout.id]
            attempt = found.attempts[0]
            fields = _fields(attempt, AttemptStatus.LOST)
            other.save_attempt(type(attempt)(**fields), due_at=0.0)
            Changeset(collections, other).write(None)
            return "before"
        return "again"

    ended = []
    assert await store.write(work) == "again"


class _DiedError(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("step", ["spans", "resources", "rollouts"])
async def test_a_crash_within_a_write_leaves_whole_rollouts(options, store, collections, step):
    """Without transactions, a write stops between two collections."""
    claim = await begin(store, limits=Limits(max_attempts=2))
    done = {"spans": "_check_running", "resources": "_new_documents", "rollouts": "finish"}[step]

    def work(records):
        records.add_spans(claim.attempt.id, [("sp", b"\x80")])
        if records.resources(1) is None:
            records.add_resources(Resources(version=1, run_id="run"))
        records.add_rollout(rollout(id="ro_new"))

    def dies(self, *arguments):
        raise _DiedError

    transactions = options.transactions == "always"
    patched = type("Cut", (Changeset,), {done: dies})
    documents = Documents(collections, now=0.0)
    work(documents)
    changes = patched(collections, documents)
    if transactions:
        client = collections.rollouts.database.client
        with client.start_session() as session, pytest.raises(_DiedError):
            session.with_transaction(changes.write)
    else:
        with pytest.raises(_DiedError):
            changes.write(None)

    (before,) = await store.rollouts(RolloutQuery(ids=(claim.rollout.id,)))
    assert before.attempts == (claim.attempt,)
    news = await store.rollouts(RolloutQuery(ids=("ro_new",)))
    assert len(news) == (step == "rollouts" and not transactions)
    await store.write(lambda records: None if records.rollouts(["ro_new"]) else work(records))
    assert len(await store.rollouts(RolloutQuery())) == 2
    assert collections.spans.count_documents({}) == 1
    await succeed(store, claim)


async def test_a_conflict_takes_back_what_was_written(options, store, collections):
    if options.transactions == "always":
        pytest.skip("a transaction takes it back by itself")
    first, second = await begin_all(store, 2)
    documents = Documents(collections, now=0.0)
    documents.add_spans(first.attempt.id, [("sp", b"\x80")])
    documents.add_rollout(rollout(id="ro_new"))
    documents.add_resources(Resources(version=1))
    for claim in (first, second):
        documents.save_rollout(
            claim.rollout.__class__(**_fields(claim.rollout, RolloutStatus.CANCELLED))
        )
    await succeed(store, second)
    changes = Changeset(collections, documents)
    with pytest.raises(Conflict):
        changes.write(None)

    changes.undo()

    assert [r.status for r in await store.rollouts(RolloutQuery())] == ["running", "succeeded"]
    assert collections.spans.count_documents({}) == 0
    assert await store.resources() is None


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_write_whose_answer_is_lost_takes_effect_once(
    options, store, collections, monkeypatch, arrives
):
    if options.transactions == "always":
        pytest.skip("the driver repeats transactions")
    claim = await begin(store, limits=Limits(max_attempts=2))
    write, losses = Changeset.write, []

    def lossy(self, session):
        if losses:
            return write(self, session)
        losses.append(True)
        if arrives:
            write(self, session)
        else:
            self._in.spans.insert_many(self._spans)
        raise AutoReconnect("connection closed")

    monkeypatch.setattr(Changeset, "write", lossy)
    spans = [span(claim), span(claim)]
    attempt = await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED, spans=spans)

    (found,) = await store.rollouts(RolloutQuery())
    assert found.attempts == (attempt,)
    assert len(await store.spans([found.id])) == 2
    with pytest.raises(StaleAttemptError):
        await store.finish(claim.attempt.id, status=AttemptStatus.CANCELLED)


@stand_in_only
async def test_a_server_that_goes_away_is_one_line(python):
    server = StandIn(python)
    server.start()
    try:
        options = MongoOptions(url=server.url("db"), retry_s=0.5, pool_size=0)
        store = MongoStore(options)
        await store.open()
        server.kill()
        for call in (store.enqueue([rollout()]), store.rollouts(RolloutQuery())):
            with pytest.raises(StoreError, match=r"cannot be reached|was away") as refused:
                await call
            assert "\n" not in str(refused.value)
        await store.close()
    finally:
        server.stop()


@stand_in_only
async def test_a_wrong_password_is_one_line(python):
    server = StandIn(python, "users")
    server.start()
    try:
        right = MongoStore(
            MongoOptions(
                url=server.url("db", "locked:sesame@")
                + "&authSource=admin&authMechanism=SCRAM-SHA-256"
            )
        )
        await right.open()
        await right.close()
        wrong = (
            server.url("db", "locked:open-sesame@")
            + "&authSource=admin&authMechanism=SCRAM-SHA-256"
        )
        for url in (wrong, server.url("db")):
            with pytest.raises(StoreError, match="the user or the password is wrong") as refused:
                await MongoStore(MongoOptions(url=url, retry_s=5.0, pool_size=0)).open()
            assert "sesame" not in str(refused.value)
            assert "\n" not in str(refused.value)
    finally:
        server.stop()


@stand_in_only
async def test_tls_at_a_server_without_it_is_one_line(url):
    with pytest.raises(StoreError, match=r"has no TLS|ended the connection"):
        await MongoStore(
            MongoOptions(url=f"{url}&tls=true&connectTimeoutMS=500", retry_s=5.0)
        ).open()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.OperationFailure("not authorized on db", 13), "grant it readWrite"),
        (errors.OperationFailure("Transaction numbers are only allowed", 20), "auto or never"),
        (errors.OperationFailure("No space left", 14031), "no space on the server's disk"),
        (errors.WaitQueueTimeoutError("Timed out"), "raise store.pool_max_overflow"),
        (errors.DocumentTooLarge("too large"), "16 MB"),
        (errors.AutoReconnect("host:1: connection closed"), r"add \?tls=true"),
        (errors.ServerSelectionTimeoutError(ssl.SSLCertVerificationError()), "cannot be reached"),
        (
            errors.ServerSelectionTimeoutError("SSL handshake failed: certificate verify failed"),
            "tlsCAFile",
        ),
        (errors.OperationFailure("odd\nthings of sesame"), r"failed \(odd things of \*\*\*\)"),
    ],
)
def test_errors_of_the_driver_are_one_line(error, said):
    made = as_store_error(error, MongoAddress("mongodb://***@h/db", "sesame"))
    with pytest.raises(StoreError, match=said):
        raise made
    assert "\n" not in str(made)


async def test_processes_that_always_write_first_end_a_write(store, monkeypatch):
    def never(self, documents):
        raise Conflict

    monkeypatch.setattr(Committer, "_write", never)
    monkeypatch.setattr("agl_mongodb._commit._PAUSE_S", 0.0)
    with pytest.raises(StoreError, match="is busy"):
        await store.enqueue([rollout()])
