"""Layers of stores: which are used, in which order, and what passes through them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from agl_stores import (
    LayerOptions,
    StoreLayer,
    bare_store_at,
    locate_store,
    make_store_at,
    open_for_reading,
)

from agl_core._builtin import load_plugins
from agl_core.app import make_store
from agl_core.app.names import check_sections
from agl_core.app.parts import make_tracking
from agl_core.config import RunConfig
from agl_core.config.loader import resolve, save_config
from agl_core.errors import ConfigError
from agl_core.interfaces import StoreLifecycle
from agl_core.plugins import PluginManager, Source, hookimpl
from agl_core.store import MemoryStore, Prunable, Readable, SqliteStore
from agl_core.types import AttemptStatus, Rollout, RolloutQuery, Task


class MarkOptions(LayerOptions):
    mark: str = "outer"


class InnerOptions(LayerOptions):
    always: ClassVar[bool] = True
    order: ClassVar[int] = -1
    mark: str = "inner"


class MarkingLayer(StoreLayer):
    """Appends a word to the run's name of every rollout that is queued."""

    def __init__(self, options: MarkOptions | InnerOptions | None, store: StoreLifecycle) -> None:
        super().__init__(store)
        self.mark = options.mark if options is not None else "none"

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        marked = [
            Rollout(id=one.id, task=one.task, run_id=f"{one.run_id}.{self.mark}")
            for one in rollouts
        ]
        return await super().enqueue(marked)


class Layers:
    @hookimpl
    def agl_register_layers(self, register):
        here = __name__
        register("a_mark", f"{here}:MarkingLayer", config=f"{here}:MarkOptions")
        register("z_inner", f"{here}:MarkingLayer", config=f"{here}:InnerOptions")


@pytest.fixture
def plugins() -> PluginManager:
    loaded = load_plugins()
    loaded.register(Layers(), Source(name="layers"))
    return loaded


def configured(folder: Path, **sections: object) -> RunConfig:
    return resolve({"directory": str(folder), "name": "run", **sections})


async def run_ids(store: StoreLifecycle) -> list[str]:
    return [rollout.run_id for rollout in await store.rollouts(RolloutQuery())]


async def queue(store: StoreLifecycle) -> None:
    await store.open()
    await store.enqueue([Rollout(id="ro_1", task=Task(id="t"), run_id="r")])
    await store.close()


async def stored(path: Path) -> list[str]:
    store = SqliteStore(path / "store.db").reader()
    await store.open()
    try:
        return await run_ids(store)
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("sections", "kept"),
    [
        ({}, "r.none"),
        ({"a_mark": {}}, "r.outer.none"),
        ({"z_inner": {"mark": "x"}, "a_mark": {"mark": "y"}}, "r.y.x"),
    ],
)
async def test_layers_are_those_of_the_sections_and_those_that_are_always_used(
    plugins: PluginManager, tmp_path: Path, sections: dict[str, object], kept: str
) -> None:
    config = configured(tmp_path, **sections)
    check_sections(config, plugins)
    assert make_tracking(config, plugins, lambda: pytest.fail("no observer")) == []
    await queue(make_store(config, plugins, tmp_path))
    assert await stored(tmp_path) == [kept]


def test_wrong_options_of_a_layer_name_its_section(plugins: PluginManager, tmp_path: Path) -> None:
    wrong = configured(tmp_path, a_mark={"mrk": "x"})
    with pytest.raises(
        ConfigError, match=r"unknown key 'a_mark\.mrk': did you mean 'a_mark\.mark'"
    ):
        check_sections(wrong, plugins)
    with pytest.raises(ConfigError, match=r"unknown key 'a_mark\.mrk'"):
        make_store(wrong, plugins, tmp_path)
    with pytest.raises(ConfigError, match="unknown key 'a_marc': did you mean 'a_mark'"):
        check_sections(configured(tmp_path, a_marc={}), plugins)


async def test_an_address_has_the_layers_of_the_configuration_that_the_user_gave(
    plugins: PluginManager, tmp_path: Path
) -> None:
    config = configured(tmp_path, a_mark={}, z_inner={"mark": "own"})
    run = tmp_path / "run"
    run.mkdir()
    await queue(make_store(config, plugins, run))
    save_config(config, run)
    given = tmp_path / "mine.json"
    given.write_text((run / "config.json").read_text())

    def marks(target: Path) -> list[str]:
        store, found = make_store_at(locate_store(target, plugins), plugins), list[str]()
        while isinstance(store, MarkingLayer):
            found.append(store.mark)
            store = store.inner
        return found

    assert marks(given) == ["outer", "own"]
    assert marks(run) == marks(run / "store.db") == ["none"]
    assert isinstance(bare_store_at(locate_store(given, plugins), plugins), SqliteStore)


@pytest.mark.parametrize("for_people", [False, True])
async def test_a_layer_is_around_the_reader_and_can_delete(
    plugins: PluginManager, tmp_path: Path, for_people: bool
) -> None:
    store = make_store(configured(tmp_path, a_mark={}), plugins, tmp_path)
    await queue(store)
    assert isinstance(store, Readable)
    assert isinstance(store, Prunable)
    address = locate_store(tmp_path / "store.db", plugins)
    async with open_for_reading(address, plugins, for_people=for_people) as reader:
        assert isinstance(reader, MarkingLayer)
        assert await run_ids(reader) == ["r.outer.none"]
    await store.open()
    (claim,) = await store.claim("w")
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    await store.close()
    assert (await store.prune(["ro_1"])).kept == 0


async def test_a_store_that_cannot_delete_says_so_through_a_layer() -> None:
    memory = MemoryStore()
    with pytest.raises(ConfigError, match="MemoryStore cannot delete the spans"):
        await StoreLayer(memory).prune(["ro_1"])
    assert StoreLayer(memory).reader().inner is memory


def test_a_layer_passes_on_every_method_of_a_store() -> None:
    for name, method in inspect.getmembers(StoreLifecycle, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(StoreLayer, name)) == inspect.signature(method)
