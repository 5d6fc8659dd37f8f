"""Rollouts begun ahead of their step: never too early, never too many, never lost."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import StoreError
from agl_core.training.rollouts import Prefetcher, RolloutPlan
from agl_core.types import Task

ROLLOUTS = 3


def plan(step):
    tasks = [Task(id=f"t{step}", input=step)]
    return RolloutPlan(
        tasks=tasks, samples=ROLLOUTS, mode="train", step=step, resources_version=step
    )


class Source:
    """Queues and collects steps' numbers in place of rollouts; collects what is released."""

    def __init__(self):
        self.queued = []
        self.released = {}

    def make(self, made):
        return made

    async def queue(self, made):
        self.queued.append(made.step)
        self.released[made.step] = asyncio.get_running_loop().create_future()
        return [f"{made.step}/{sample}" for sample in range(made.samples)]

    async def collect(self, ids):
        return await self.released[int(ids[0].partition("/")[0])]


def release(source, step):
    source.released[step].set_result([step])


@given(ahead=st.integers(0, 5), steps=st.integers(1, 9), data=st.data())
def test_a_step_is_queued_once_and_never_more_than_so_far_ahead(ahead, steps, data):
    async def run():
        source = Source()
        under_way = Prefetcher(source, plan, ahead=ahead, steps=steps)
        for step in range(steps):
            taking = asyncio.create_task(under_way.take(step))
            await asyncio.sleep(0)
            assert source.queued == list(range(min(step + ahead + 1, steps)))
            waiting = [each for each in source.queued if not source.released[each].done()]
            for early in data.draw(st.lists(st.sampled_from([step, *waiting]), unique=True)):
                if not source.released[early].done():
                    release(source, early)
            if not source.released[step].done():
                release(source, step)
            assert await taking == [step]
            assert under_way.rollouts == ROLLOUTS * (len(source.queued) - step - 1)
        assert under_way.rollouts == 0
        await under_way.close()

    asyncio.run(run())


async def test_what_goes_wrong_with_a_later_step_is_told_when_its_turn_comes():
    source = Source()
    under_way = Prefetcher(source, plan, ahead=1, steps=2)
    first = asyncio.create_task(under_way.take(0))
    await asyncio.sleep(0)
    source.released[1].set_exception(StoreError("gone"))
    release(source, 0)
    assert await first == [0]
    with pytest.raises(StoreError, match="gone"):
        await under_way.take(1)
    await under_way.close()


async def test_closing_waits_for_nothing():
    source = Source()
    under_way = Prefetcher(source, plan, ahead=2, steps=5)
    first = asyncio.create_task(under_way.take(0))
    await asyncio.sleep(0)
    release(source, 0)
    await first
    await under_way.close()
    assert under_way.rollouts == 2 * ROLLOUTS
    assert source.released[1].cancelled()
    assert source.released[2].cancelled()
