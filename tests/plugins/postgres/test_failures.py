"""What is wrong with an address, a database or a server, and servers that go away."""

from __future__ import annotations

import asyncio
import os
import threading

import psycopg
import pytest
from agl_postgres import PostgresOptions, PostgresStore
from agl_postgres._connect import Server as Address
from agl_postgres._schema import VERSION, migrate
from agl_testing._store_samples import begin, begin_all, rollout, span, succeed

from agl_core.app import load_plugins
from agl_core.config import StoreConfig
from agl_core.errors import ConfigError, StoreError
from agl_core.store import store_options
from agl_core.types import Ingest, RolloutQuery, RolloutStatus

PATIENCE_S = 120


async def refused(options):
    """Return the error of a store that cannot be opened."""
    with pytest.raises(StoreError) as error:
        await PostgresStore(options).open()
    text = str(error.value)
    assert "\n" not in text
    assert "sesame" not in text
    assert "wrong-word" not in text
    return text


@pytest.fixture
async def store(options):
    store = PostgresStore(options)
    await store.open()
    yield store
    await store.close()


def test_addresses_that_are_none_say_so_without_the_password():
    plugins = load_plugins()
    for url, message in {
        "": "needs url",
        "mysql://u:sesame@host/db": "begins with postgresql://",
        "postgresql://u:ses/ame@host/db": "%2F",
        "postgresql://host/db?password=sesame": "before the @",
        "postgresql://host/db?sslmode=require&sslpassword=sesame": "before the @",
    }.items():
        with pytest.raises(ConfigError, match=message) as error:
            store_options(StoreConfig.model_validate({"name": "postgres", "url": url}), plugins)
        assert "ame@" not in str(error.value)
        assert "sesame" not in str(error.value)


async def test_addresses_that_libpq_cannot_read_do_not_repeat_the_password():
    for url in (
        "postgresql://u:ses%zzame@host/db",
        "postgresql://u:sesame@host/db?no_such_parameter=1",
        "postgresql://u:sesame@[host/db",
    ):
        assert "is not an address that PostgreSQL reads" in await refused(PostgresOptions(url=url))


async def test_refusals_name_the_fix(server, database):
    url = server.url(database)
    with server.connect(database) as connection:
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO few")
    for other, message in {
        url.replace("postgres@", "locked:wrong-word@"): "the user or the password is wrong",
        url.replace("postgres@", "locked@"): "the user or the password is wrong",
        url.replace("postgres@", "ghost:sesame@"): "no such user",
        server.url("nowhere"): "no such database",
        url.replace("postgres@", "tls@"): "encrypted connections only",
        f"{url}?sslmode=require": "no TLS",
        url.replace(f":{server.port}", ":1"): "cannot be reached",
        url.replace("postgres@", "few@") + "?connect_timeout=5": "no connection left",
    }.items():
        options = PostgresOptions(url=other, pool_size=1, retry_s=1, pool_timeout_s=1)
        assert message in await refused(options), other


async def test_databases_that_do_not_fit_name_the_fix(server):
    with server.connect() as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    assert "ENCODING 'UTF8'" in await refused(PostgresOptions(url=server.url("latin")))
    url = server.url(server.database())
    assert "search_path" in await refused(
        PostgresOptions(url=f"{url}?options=-csearch_path%3Dnowhere")
    )
    powerless = PostgresOptions(url=url.replace("postgres@", "powerless@"))
    assert "lacks a right" in await refused(powerless)
    with pytest.raises(StoreError, match="no tables"):
        await PostgresStore(PostgresOptions(url=url)).reader().open()


async def test_tables_of_other_releases_name_the_upgrade(server, database, options):
    with server.connect(database) as connection:
        connection.execute("UPDATE agl_versions SET version_num = '0099'")
        assert f"version 0099, this one reads up to {VERSION}" in await refused(options)
        connection.execute("UPDATE agl_versions SET version_num = 'theirs'")
        assert "newer agl-core" in await refused(options)
        connection.execute("DELETE FROM agl_versions")
    assert "failed" in await refused(options)  # tables without a version are not replaced


async def test_older_tables_are_only_changed_by_the_command(monkeypatch, options):
    monkeypatch.setattr("agl_postgres._schema.VERSION", VERSION + 1)
    assert "agl store migrate" in await refused(options)


async def test_first_opens_at_the_same_time_make_the_tables_once(server):
    options = PostgresOptions(url=server.url(server.database()), pool_size=1)
    stores = [PostgresStore(options) for _ in range(3)]
    await asyncio.gather(*(store.open() for store in stores))
    await stores[0].enqueue([rollout()])
    assert len(await stores[2].rollouts(RolloutQuery())) == 1
    for store in stores:
        await store.close()
    assert migrate(Address.of(options)) == (VERSION, VERSION)


async def test_a_dry_pool_gives_figures(options):
    store = PostgresStore(
        options.model_copy(update={"pool_size": 0, "pool_max_overflow": 0, "pool_timeout_s": 0.3})
    )
    await store.open()
    await store.enqueue([rollout()])
    over, busy = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def block(records):
        loop.call_soon_threadsafe(busy.set)
        over.wait(PATIENCE_S)

    blocked = asyncio.ensure_future(store.read(block))
    await busy.wait()
    with pytest.raises(StoreError, match="2 of at most 2 are open, 0 free"):
        await store.rollouts(RolloutQuery())
    over.set()
    await blocked
    assert len(await store.rollouts(RolloutQuery())) == 1
    assert store.statistics()["requests_errors"] >= 1
    await store.close()


async def test_server_that_is_killed_and_started_again_costs_nothing_that_ended(server, store):
    ids = [one.id for one in await store.enqueue([rollout() for _ in range(40)])]
    begun = asyncio.Event()

    async def work(name):
        while claims := await store.claim(name, timeout_s=1):
            for claim in claims:
                begun.set()
                await store.add_spans([span(claim)])
                await succeed(store, claim, [span(claim, name="last")])

    workers = [asyncio.ensure_future(work(f"w{n}")) for n in range(4)]
    waiting = asyncio.ensure_future(store.wait(ids))
    await begun.wait()
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)
    final = await asyncio.wait_for(waiting, PATIENCE_S)
    await asyncio.gather(*workers)
    assert {one.status for one in final} == {RolloutStatus.SUCCEEDED}
    assert all(len(one.attempts) == 1 for one in final)
    last = [one for one in await store.spans(ids) if one.name == "last"]
    assert sorted(one.rollout_id for one in last) == sorted(ids)


async def test_server_that_stays_away_is_an_error_after_the_bound(server, options):
    store = PostgresStore(options.model_copy(update={"retry_s": 0.5, "pool_timeout_s": 0.5}))
    await store.open()
    await asyncio.to_thread(server.kill)
    try:
        for call in (store.enqueue([rollout()]), store.rollouts(RolloutQuery())):
            with pytest.raises(StoreError, match="cannot be reached") as error:
                await asyncio.wait_for(call, PATIENCE_S)
            assert "\n" not in str(error.value)
        assert "cannot be reached" in await refused(options)
    finally:
        await asyncio.to_thread(server.start)
    assert len(await store.enqueue([rollout()])) == 1
    assert len(await store.claim("w1", timeout_s=PATIENCE_S)) == 1
    await store.close()


async def test_lost_notifications_are_made_up_for(server, store, options):
    other = PostgresStore(options)
    await other.open()
    claim = await begin(store)
    claims = asyncio.ensure_future(store.claim("w1"))
    final = asyncio.ensure_future(store.wait([claim.rollout.id]))
    await asyncio.wait([claims, final], timeout=0.2)
    with server.connect() as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE (query LIKE 'LISTEN%' OR query LIKE '%advisory%') AND pid <> pg_backend_pid()"
        )
        assert len(ended.fetchall()) >= 2
    await succeed(other, claim)
    await other.enqueue([rollout()])
    assert len(await asyncio.wait_for(claims, PATIENCE_S)) == 1
    assert len(await asyncio.wait_for(final, PATIENCE_S)) == 1
    await other.close()


@pytest.mark.parametrize("committed", [True, False])
async def test_a_connection_lost_in_a_commit_writes_once(monkeypatch, store, committed):
    await store.enqueue([rollout()])
    original, lost = psycopg.Connection.execute, []

    def execute(self, query, *arguments, **options):
        writer = threading.current_thread().name == "agl-store-writer"
        if query != "COMMIT" or not writer or lost:
            return original(self, query, *arguments, **options)
        lost.append(self)
        if committed:
            original(self, query, *arguments, **options)
        self.close()
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(psycopg.Connection, "execute", execute)
    (claim,) = await store.claim("w1", timeout_s=0)
    assert lost
    (found,) = await store.rollouts(RolloutQuery())
    assert found.attempts == (claim.attempt,)
    await succeed(store, claim)


async def test_only_transactions_of_spans_do_not_wait_for_the_disk(server, database, store):
    with server.connect(database) as connection:
        connection.execute("CREATE TABLE seen (what text, setting text)")
        connection.execute(
            "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen "
            "VALUES (TG_TABLE_NAME, current_setting('synchronous_commit')); RETURN NULL; END $$"
        )
        for table in ("agl_rollouts", "agl_attempts", "agl_spans"):
            connection.execute(
                f"CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE ON {table} DEFERRABLE "
                f"INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()"
            )
        claim = await begin(store)
        await store.add_spans([span(claim)])
        seen = connection.execute("SELECT DISTINCT what, setting FROM seen").fetchall()
        assert set(seen) == {
            ("agl_rollouts", "on"),
            ("agl_attempts", "on"),
            ("agl_spans", "off"),
        }
        connection.execute("DELETE FROM seen")
        await succeed(store, claim, [span(claim)])
        seen = connection.execute("SELECT DISTINCT what, setting FROM seen").fetchall()
        assert set(seen) >= {("agl_attempts", "on"), ("agl_spans", "on")}


async def test_one_id_that_is_too_long_fails_alone(store):
    random = os.urandom(2000).hex()  # what can be compressed may be longer
    calls = [store.enqueue([rollout(group_id=group)]) for group in ("a", random, "b")]
    first, second, third = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(second, StoreError)
    assert "2,000 bytes" in str(second)
    assert first[0].group_id == "a"
    assert third[0].group_id == "b"


async def test_an_error_of_an_operation_leaves_the_rest_of_its_transaction_alone(store):
    claims = await begin_all(store, 3)

    def fails(operations):
        operations.records.add_spans(claims[1].attempt.id, [("one", b"")])
        raise KeyError("bug")

    results = await asyncio.gather(
        store.add_spans([span(claims[0])]),
        store.submit(fails),
        store.add_spans([span(claims[2])]),
        return_exceptions=True,
    )
    assert [type(one) for one in results] == [Ingest, KeyError, Ingest]
    assert len(await store.spans([claim.rollout.id for claim in claims])) == 2


async def test_foreign_notifications_are_ignored(server, database, store):
    with server.connect(database) as connection:
        for payload in (
            "",
            "{}",
            "[1]",
            '{"from": "x", "queued": -1, "final": [[3]]}',
            '{"from": 1, "queued": 1e999}',
        ):
            connection.execute("SELECT pg_notify(%s, %s)", [store._listener._channel, payload])
    await store.enqueue([rollout()])
    assert len(await store.claim("w1", timeout_s=PATIENCE_S)) == 1
    assert store.statistics()["reconnects"] == 0
