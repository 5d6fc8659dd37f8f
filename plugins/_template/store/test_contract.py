"""The store contract for this store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from agl_template._options import TemplateOptions
from agl_template._store import TemplateStore, make_store
from agl_testing.plugin_contract import PluginContract
from agl_testing.store_contract import StoreContract


@asynccontextmanager
async def opened(store: TemplateStore) -> AsyncGenerator[TemplateStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class TestTemplate(StoreContract):
    durable = True

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[TemplateStore]:
        async with opened(make_store(TemplateOptions(), tmp_path)) as store:
            yield store

    @pytest.fixture
    async def dropping_store(self, tmp_path: Path) -> AsyncIterator[TemplateStore]:
        options = TemplateOptions(retention="drop_spans")
        async with opened(make_store(options, tmp_path)) as store:
            yield store

    @pytest.fixture
    async def reopen(
        self, tmp_path: Path
    ) -> AsyncIterator[Callable[[TemplateStore], Awaitable[TemplateStore]]]:
        """Return a function that drops a store as a crash would and opens it again."""
        again = make_store(TemplateOptions(), tmp_path)

        async def take_over(store: TemplateStore) -> TemplateStore:
            await store.close()
            await again.open()
            return again

        yield take_over
        await again.close()


class TestPlugin(PluginContract):
    plugin = "agl_template.plugin"
