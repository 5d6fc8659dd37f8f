"""The store contract and the contract of plugins."""

from __future__ import annotations

import pytest
from agl_postgres import PostgresStore
from agl_testing.plugin_contract import PluginContract
from agl_testing.store_contract import StoreContract

from tests.plugins.encryption.keyring import encrypted
from tests.plugins.encryption.rekey_contract import RekeyContract


class TestPostgres(StoreContract):
    durable = True

    @pytest.fixture
    async def store(self, options):
        store = PostgresStore(options)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def dropping_store(self, options):
        store = PostgresStore(options.model_copy(update={"retention": "drop_spans"}))
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, options):
        again = PostgresStore(options)

        async def take_over(store):
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


class TestEncrypted(StoreContract):
    """The same through the layer that encrypts."""

    durable = True

    @pytest.fixture
    async def store(self, options):
        store = _encrypted(PostgresStore(options))
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def dropping_store(self, options):
        dropping = options.model_copy(update={"retention": "drop_spans"})
        store = _encrypted(PostgresStore(dropping))
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, options):
        again = _encrypted(PostgresStore(options))

        async def take_over(store):
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


class TestRekey(RekeyContract):
    """``agl store rekey``."""

    @pytest.fixture
    async def inner(self, options):
        pytest.importorskip("cryptography")
        store = PostgresStore(options)
        await store.open()
        yield store
        await store.close()


def _encrypted(inner):
    pytest.importorskip("cryptography")
    return encrypted(inner)


class TestPlugin(PluginContract):
    plugin = "agl_postgres.plugin"
    frameworks = ("psycopg", "psycopg_pool", "alembic", "sqlalchemy")
