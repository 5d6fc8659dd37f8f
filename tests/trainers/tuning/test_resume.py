"""Interrupted prompt phases: what has finished is found in the store and does not run again."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from agl_tuning._runs import KEY

from tests.trainers.tuning.world import World, apo, bootstrap, writer_alone

RESUME = {"train": {"resume": True}}


def keys(rollouts):
    return Counter(rollout.metadata[KEY] for rollout in rollouts)


@pytest.mark.parametrize("phase", [apo(90), bootstrap(60)], ids=["apo", "bootstrap"])
async def test_a_phase_resumes_after_an_interruption_at_every_point(tmp_path, phase):
    def world(name):
        return World(tmp_path / name, agent=writer_alone, phases=[phase])

    whole = world("whole")
    expected = await whole.tune()
    ran = keys(await whole.rollouts())
    assert len(ran) == expected.rollouts + 8
    for point in range(3, whole.calls, 9):
        one = world(str(point))
        assert await one.interrupted(point), point
        assert not await one.rollouts("queued", "running"), point
        assert await one.tune(**RESUME) == expected, point
        finished = await one.rollouts("succeeded", "failed")
        assert keys(finished) == ran, point
        assert one.prompt_world.edits == whole.prompt_world.edits, point


async def test_without_resume_nothing_of_an_earlier_run_is_used(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(60)])
    first = await world.tune()
    assert await world.tune() == first
    assert set(keys(await world.rollouts()).values()) == {2}
    assert (tmp_path / "prompts" / "0-bootstrap.jsonl.old").is_file()


async def test_an_ended_phase_runs_nothing_again(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[apo(90)])
    first = await world.tune()
    calls = world.calls
    assert await world.tune(**RESUME) == first
    assert world.calls == calls
    assert world.losses.counts["rollouts_abandoned"] == -first.rollouts - 8


async def test_other_prompts_and_settings_use_no_rollouts_of_an_earlier_run(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(60)])
    first = await world.tune()
    await world.tune(seed=1, **RESUME)
    assert set(keys(await world.rollouts()).values()) == {1}
    assert len(await world.rollouts()) > first.rollouts + 8 + 8


async def test_an_outage_at_the_end_runs_again_when_the_run_is_resumed(tmp_path):
    whole = World(tmp_path / "whole", agent=writer_alone, phases=[bootstrap(60)])
    expected = await whole.tune()
    world = World(tmp_path / "outage", agent=writer_alone, phases=[bootstrap(60)])
    prompts = await world.learn()
    world.backend.fails = lambda head: True
    with pytest.raises(Exception, match="503"):
        await world.tune(prompts)
    world.backend.fails = lambda head: False
    assert await world.tune(prompts, **RESUME) == expected


async def test_dropped_spans_of_an_ended_phase_are_made_again(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(60)])
    world._memory._retention = "drop_spans"
    first = await world.tune()
    assert await world.tune(**RESUME) == first


async def test_cancelling_leaves_no_open_rollouts(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(60)])
    prompts = await world.learn()
    async with world.open() as tuner:
        asked = asyncio.Event()

        async def before(head):
            asked.set()
            await asyncio.Event().wait()

        world.backend.before = before
        running = asyncio.create_task(world.alongside(tuner.tune(0, prompts)))
        await asked.wait()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
    cancelled = [each for each in await world.rollouts() if each.status == "cancelled"]
    assert len(cancelled) == 16
