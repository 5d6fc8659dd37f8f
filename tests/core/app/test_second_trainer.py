"""A trainer that comes second finds what the first one wrote, and leaves it as it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agl_core.app import _components as components
from agl_core.app._components import leading
from agl_core.errors import ConfigError, LeadHeldError
from agl_core.store._sqlite import SqliteStore
from tests.core.app.conftest import Bench, renews_often


@pytest.fixture
def behind_an_elder(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next trainer waits at the store until another has trained two steps to their end."""

    @asynccontextmanager
    async def waiting(store: Any, *, lease_s: float) -> AsyncGenerator[Any]:
        monkeypatch.setattr(components, "leading", leading)
        await bench.app().train()
        async with leading(store, lease_s=lease_s) as lead:
            yield lead

    monkeypatch.setattr(components, "leading", waiting)


@pytest.mark.usefixtures("behind_an_elder")
async def test_checkpoints_written_while_it_waited_are_not_written_over(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"train\.resume = true"):
        await bench.app().train()


@pytest.mark.usefixtures("behind_an_elder")
async def test_it_resumes_from_what_was_written_while_it_waited(bench: Bench) -> None:
    report = await bench.app(train__resume=True, train__steps=3).train()
    assert [step.step for step in report.steps] == [1, 2, 3]
    assert len(bench.engines[0].batches) == 1


async def test_one_that_is_refused_leaves_the_configuration_of_the_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    renews_often(monkeypatch)
    await bench.app(store__name="sqlite").train()
    written = bench.directory / "bench" / "config.json"
    before = written.read_bytes()
    store = SqliteStore(written.with_name("store.db"))
    await store.open()
    second = bench.app(store__name="sqlite", train__resume=True, train__steps=9, rollout__lease_s=1)
    async with leading(store, lease_s=600):
        with pytest.raises(LeadHeldError):
            await second.train()
    await store.close()
    assert written.read_bytes() == before
