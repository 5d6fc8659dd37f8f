from __future__ import annotations

import pytest
from agl_testing.store_contract import StoreContract

from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore


class TestMemoryStore(StoreContract):
    durable = False

    @pytest.fixture
    async def store(self):
        store = MemoryStore()
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def dropping_store(self):
        store = MemoryStore(retention="drop_spans")
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self):
        again = MemoryStore()

        async def take_over(store):
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


class TestSqliteStore(StoreContract):
    durable = True

    @pytest.fixture
    async def store(self, tmp_path):
        store = SqliteStore(tmp_path / "store.db")
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def dropping_store(self, tmp_path):
        store = SqliteStore(tmp_path / "store.db", retention="drop_spans")
        await store.open()
        yield store
        await store.close()

    @pytest.fixture
    async def reopen(self, tmp_path):
        again = SqliteStore(tmp_path / "store.db")

        async def take_over(store):
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()
