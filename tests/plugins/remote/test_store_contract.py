"""A served store keeps every rule of a local one, over either medium."""

from __future__ import annotations

import pytest
from agl_remote import HttpStore, StoreServer
from agl_testing.store_contract import StoreContract

from agl_core.store._memory import MemoryStore
from agl_core.store._sqlite import SqliteStore

KEY = "key"


class Servers:
    """Store servers of a test, with their clients."""

    def __init__(self, make):
        self.make = make
        self.servers = {}

    async def open(self, name, **options):
        server = StoreServer(self.make(name, **options), key=KEY)
        await server.start()
        store = HttpStore(server.url, KEY)
        await store.open()
        self.servers[store] = (name, server)
        return store

    async def reopen(self, store):
        name, server = self.servers.pop(store)
        await server.stop()
        await store.close()
        return await self.open(name)

    async def close(self):
        for store, (_, server) in self.servers.items():
            await store.close()
            await server.stop()


class ServedStoreContract(StoreContract):
    @pytest.fixture
    async def servers(self, tmp_path):
        servers = Servers(lambda name, **options: self.make(tmp_path / name, **options))
        yield servers
        await servers.close()

    @pytest.fixture
    async def store(self, servers):
        return await servers.open("store.db")

    @pytest.fixture
    async def dropping_store(self, servers):
        return await servers.open("dropping.db", retention="drop_spans")

    @pytest.fixture
    async def reopen(self, servers):
        return servers.reopen


class TestServedMemoryStore(ServedStoreContract):
    durable = False

    def make(self, _, **options):
        return MemoryStore(**options)


class TestServedSqliteStore(ServedStoreContract):
    durable = True

    def make(self, path, **options):
        return SqliteStore(path, **options)


del ServedStoreContract, StoreContract
