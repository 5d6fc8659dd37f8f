"""The store contract, with transactions and without, and the contract of plugins."""

from __future__ import annotations

import pytest
from agl_mongodb import MongoStore
from agl_testing.plugin_contract import PluginContract
from agl_testing.store_contract import StoreContract


class TestMongo(StoreContract):
    durable = True

    @pytest.fixture
    async def store(self, options):
        store = MongoStore(options)
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def dropping_store(self, options):
        store = MongoStore(options.model_copy(update={"retention": "drop_spans"}))
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, options):
        again = MongoStore(options)

        async def take_over(store):
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


class TestPlugin(PluginContract):
    plugin = "agl_mongodb.plugin"
    frameworks = ("pymongo", "bson")
