"""Captured prompts are learned from the first rollouts."""

from __future__ import annotations

import pytest

from agl_core.errors import ConfigError, TrainingError
from tests.trainers.tuning.world import WRITER, World, ask, program, writer_alone

CAPTURED = {"captured": True}


async def test_captured_prompts_are_learned_from_the_first_tasks(tmp_path):
    world = World(tmp_path)
    prompts = await world.learn()
    assert prompts["writer"].known == prompts["writer"].template == WRITER
    assert prompts["writer"].agents == ("writer",)
    rollouts = await world.rollouts()
    assert len({rollout.task.id for rollout in rollouts}) == len(rollouts) == 8
    assert {rollout.mode for rollout in rollouts} == {"train"}
    assert all(rollout.consumed for rollout in rollouts)
    assert [*map(len, world.published)] == [0, 0, 1]
    assert world.published[-1] == prompts


async def test_prompts_keep_the_order_of_the_configuration(tmp_path):
    section = {"b": {"agents": ["writer"], **CAPTURED}, "a": "Hello {name}"}
    assert [*await World(tmp_path, prompts=section).learn()] == ["b", "a"]


async def test_without_captured_prompts_nothing_runs(tmp_path):
    world = World(tmp_path, prompts={"a": "Hello {name}"})
    assert [*await world.learn()] == ["a"]
    assert not await world.rollouts()


async def test_more_tasks_run_until_a_rare_agent_makes_a_call(tmp_path):
    async def rarely(task):
        return await ask("writer" if task.id == rare else "planner", WRITER, "Write.")

    rare = ""
    world = World(tmp_path, agent=rarely)
    await World(tmp_path / "order", agent=writer_alone).learn()
    first = {each.task.id for each in await _rollouts(tmp_path / "order")}
    rare = next(task.id for task in world.train if task.id not in first)
    assert (await world.learn())["writer"].known == WRITER
    assert len(await world.rollouts()) == len(world.train)


async def _rollouts(directory):
    world = World(directory, agent=writer_alone)
    await world.learn()
    return await world.rollouts()


async def test_a_prompt_that_no_agent_sends_is_an_error(tmp_path):
    section = {"p": {"agents": ["editor"], **CAPTURED}}
    with pytest.raises(ConfigError, match=r"prompts\.p: .*editor.*planner.*writer"):
        await World(tmp_path, prompts=section).learn()


async def test_a_prompt_that_differs_in_all_is_an_error_with_the_texts(tmp_path):
    async def own(task):
        texts = ("Sell more of everything.", "Nobody reads poems about water.")
        return await ask("writer", texts[task.input["number"] % 2], "Write.")

    with pytest.raises(ConfigError, match=r"nothing in common.*Sell more.*Nobody reads|Nobody"):
        await World(tmp_path, agent=own).learn()


async def test_globs_that_match_one_agent_in_two_prompts_are_an_error(tmp_path):
    section = {"a": {"agents": ["w*"], **CAPTURED}, "b": {"agents": ["*r"], **CAPTURED}}
    with pytest.raises(ConfigError, match=r"prompts\.a and prompts\.b both capture .*'writer'"):
        await World(tmp_path, prompts=section).learn()


async def test_attempts_that_all_fail_tell_why(tmp_path):
    async def broken(task):
        raise RuntimeError("the database is away")

    with pytest.raises(TrainingError, match=r"all 12 attempts failed .*the database is away"):
        await World(tmp_path, agent=broken).learn()


async def test_an_interrupted_learning_repeats_nothing(tmp_path):
    world = World(tmp_path, agent=program)

    async def tune(**settings):
        return await world.learn(**settings)

    world.tune, world.concurrency = tune, 2
    assert await world.interrupted(9)
    done = {each.id for each in await world.rollouts("succeeded")}
    assert done
    assert (await world.learn(train={"resume": True}))["writer"].known == WRITER
    rollouts = await world.rollouts("succeeded")
    assert done < {each.id for each in rollouts}
    assert len(rollouts) == 8
