"""When `BaseStore` connects and disconnects the medium of a subclass."""

from __future__ import annotations

import asyncio
import math

import pytest
from agl_testing._store_samples import begin, rollout

from agl_core.errors import StoreError
from agl_core.store import BaseStore
from agl_core.store._memory import MemoryRecords
from agl_core.types import AttemptStatus, RolloutQuery


class HeldStore(BaseStore):
    """A store whose reads and writes wait while `free` is not set."""

    def __init__(self, *, crashed=False):
        super().__init__()
        self.records = MemoryRecords()
        self.crashed = crashed
        self.free = asyncio.Event()
        self.entered = asyncio.Event()
        self.events = []
        self.free.set()

    def hold(self):
        self.free.clear()
        self.entered.clear()
        self.events.clear()

    async def connect(self):
        return self.crashed

    async def disconnect(self):
        self.events.append("disconnected")

    async def write(self, work):
        return await self._held(work, "written")

    async def read(self, query, *, rows=math.inf):
        del rows
        return await self._held(query, "read")

    async def _held(self, work, event):
        self.entered.set()
        try:
            await self.free.wait()
            return work(self.records)
        finally:
            self.events.append(event)


async def turns():
    """Let the other tasks of the loop run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def opened(store):
    """Return the store once the watchdog has looked and sleeps."""
    await store.open()
    await turns()
    return store


READS = {
    "rollouts": lambda store, claim: store.rollouts(RolloutQuery()),
    "spans": lambda store, claim: store.spans([claim.rollout.id]),
    "resources": lambda store, claim: store.resources(),
    "wait": lambda store, claim: store.wait([claim.rollout.id], timeout_s=0),
}


@pytest.mark.parametrize("name", READS)
async def test_close_waits_for_a_read_before_it_disconnects(name):
    store = await opened(HeldStore())
    claim = await begin(store)
    store.hold()
    reading = asyncio.create_task(READS[name](store, claim))
    await store.entered.wait()
    closing = asyncio.create_task(store.close())
    await turns()
    assert store.events == []
    with pytest.raises(StoreError, match="not open"):
        await store.rollouts(RolloutQuery())
    store.free.set()
    await closing
    assert store.events == ["read", "disconnected"]
    await reading


async def test_a_cancelled_read_does_not_delay_close():
    store = await opened(HeldStore())
    store.hold()
    reading = asyncio.create_task(store.rollouts(RolloutQuery()))
    await store.entered.wait()
    reading.cancel()
    await asyncio.wait([reading])
    await store.close()
    assert store.events == ["read", "disconnected"]


async def test_close_waits_for_a_write_whose_caller_was_cancelled():
    store = await opened(HeldStore())
    store.hold()
    writing = asyncio.create_task(store.enqueue([rollout()]))
    await store.entered.wait()
    writing.cancel()
    await asyncio.wait([writing])
    closing = asyncio.create_task(store.close())
    await turns()
    assert store.events == []
    store.free.set()
    await closing
    assert store.events == ["written", "disconnected"]


async def test_an_open_that_is_cancelled_disconnects_after_its_write():
    store = HeldStore(crashed=True)
    store.hold()
    opening = asyncio.create_task(store.open())
    await store.entered.wait()
    opening.cancel()
    await turns()
    assert store.events == []
    store.free.set()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert store.events == ["written", "disconnected"]


async def test_private_names_of_a_subclass_replace_none_of_the_base_class():
    """A plugin that had a method `_run` of its own broke every write, without an error."""
    base = {*vars(BaseStore), *vars(HeldStore())}
    names = {name.removeprefix("_BaseStore_") for name in base if name.startswith("_BaseStore__")}
    assert {"_run", "_write", "_open", "_tasks"} <= names
    store = type("Private", (HeldStore,), dict.fromkeys(names, "own"))()
    vars(store).update(dict.fromkeys(names, "own"))
    await opened(store)
    claim = await begin(store)
    await store.finish(claim.attempt.id, status=AttemptStatus.SUCCEEDED)
    assert len(await store.wait([claim.rollout.id])) == 1
    await store.close()
    assert {getattr(store, name) for name in names} == {"own"}


def test_the_base_class_has_no_private_name_that_a_subclass_could_replace():
    mangled = ("_BaseStore__", "__", "_abc_")
    base = {*vars(BaseStore), *vars(HeldStore())} - {*vars(HeldStore)}
    assert [name for name in base if name[0] == "_" and not name.startswith(mangled)] == []
