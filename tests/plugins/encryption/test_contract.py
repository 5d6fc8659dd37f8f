"""The store contract through the layer, and the contract of plugins."""

from __future__ import annotations

import pytest
from agl_testing.plugin_contract import PluginContract
from agl_testing.store_contract import StoreContract

from agl_core.store import MemoryStore, SqliteStore
from tests.plugins.encryption.keyring import encrypted


class TestOverSqlite(StoreContract):
    durable = True

    @pytest.fixture
    async def store(self, tmp_path):
        store = encrypted(SqliteStore(tmp_path / "store.db"))
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def dropping_store(self, tmp_path):
        store = encrypted(SqliteStore(tmp_path / "store.db", retention="drop_spans"))
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, tmp_path):
        again = encrypted(SqliteStore(tmp_path / "store.db"))

        async def take_over(store):
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


@pytest.mark.parametrize("fields", [["messages", "errors"], ["tokens"], ["attributes", "tasks"]])
class TestOverMemory(StoreContract):
    """With some fields, the others are stored and read as they are."""

    durable = False

    @pytest.fixture
    async def store(self, fields):
        store = encrypted(MemoryStore(), fields=fields)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def dropping_store(self, fields):
        store = encrypted(MemoryStore(retention="drop_spans"), fields=fields)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, fields):
        again = encrypted(MemoryStore(), fields=fields)

        async def take_over(store):
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


class TestPlugin(PluginContract):
    plugin = "agl_encryption.plugin"
    frameworks = ("cryptography",)
