from __future__ import annotations

import asyncio
import math
import time

import pytest

from agl_core.errors import StoreError
from agl_core.store._waiting import ClaimQueue, FinalWatches, SystemClock


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_arrivals_call_workers_in_the_order_they_came():
    line = ClaimQueue()
    called = []

    async def worker(name):
        await line.wait(0, timeout_s=None)
        called.append(name)

    tasks = [asyncio.ensure_future(worker(name)) for name in "abc"]
    await settle()
    line.arrive(1)
    await settle()
    assert called == ["a"]
    line.arrive(5)
    await asyncio.gather(*tasks)
    assert called == ["a", "b", "c"]


async def test_arrival_between_look_and_wait_is_not_missed():
    line = ClaimQueue()
    seen = line.arrivals
    line.arrive(1)
    await asyncio.wait_for(line.wait(seen, timeout_s=None), 100)


async def test_worker_that_is_called_and_leaves_passes_the_call_on():
    line = ClaimQueue()
    first, second = (asyncio.ensure_future(line.wait(0, timeout_s=None)) for _ in range(2))
    await settle()
    line.arrive(1)
    first.cancel()
    await asyncio.wait_for(second, 100)
    await asyncio.gather(first, return_exceptions=True)


async def test_worker_whose_time_is_up_leaves_the_line():
    line = ClaimQueue()
    await line.wait(0, timeout_s=0)
    waiting = asyncio.ensure_future(line.wait(0, timeout_s=None))
    await settle()
    line.arrive(1)
    await asyncio.wait_for(waiting, 100)


async def test_closing_sends_everybody_away():
    line, finals = ClaimQueue(), FinalWatches()
    watch = finals.watch(["r"])
    waiting = [
        asyncio.ensure_future(line.wait(0, timeout_s=None)),
        asyncio.ensure_future(watch.wait(timeout_s=None)),
    ]
    await settle()
    line.close(StoreError("closed"))
    finals.close(StoreError("closed"))
    for task in waiting:
        with pytest.raises(StoreError, match="closed"):
            await task


async def test_watch_ends_with_its_last_rollout_and_leaves_nothing_behind():
    finals = FinalWatches()
    one, both = finals.watch(["a"]), finals.watch(["a", "b"])
    finals.announce(["a"])
    await one.wait(timeout_s=None)
    both.see(["b"])
    await both.wait(timeout_s=None)
    for watch in (one, both):
        finals.unwatch(watch)
    assert finals._watches == {}


async def test_watch_of_nothing_is_over_at_once():
    await FinalWatches().watch([]).wait(timeout_s=None)


@pytest.mark.parametrize("until", [math.inf, 100])
async def test_a_wait_that_is_cancelled_as_its_event_is_set_ends(until):
    """On Python 3.11, the watchdog of a store that was closed right after a claim went on."""
    for turns in range(4):
        event = asyncio.Event()
        waiting = asyncio.ensure_future(SystemClock().wait(event, until=time.time() + until))
        await settle()
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            await asyncio.wait([waiting])
            assert waiting.cancelled()
