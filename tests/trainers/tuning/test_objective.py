"""The objective of `OptimizerContract`, played by real rollouts."""

from __future__ import annotations

import pytest
from agl_testing.prompt_world import HARMFUL, WANTED

from tests.trainers.tuning.world import World, apo, bootstrap, tasks, writer_alone

APO = apo(400, val_batch=8, rounds=6, confidence=0.9)


async def test_the_optimum_is_reached(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[APO])
    world.val = tasks(100, 24)
    tuned = await world.tune()
    text = tuned.texts["writer"]
    assert all(word in text for word in WANTED), tuned
    assert not any(word in text for word in HARMFUL)
    assert tuned.after.mean == 1.0


@pytest.mark.parametrize("phase", [APO, bootstrap(150)], ids=["apo", "bootstrap"])
async def test_two_runs_are_equal_and_stay_within_the_budget(tmp_path, phase):
    results = []
    for name in ("1", "2"):
        world = World(tmp_path / name, agent=writer_alone, phases=[phase], store="sqlite")
        results.append(await world.tune())
        assert len(await world.rollouts()) == 8 + results[-1].rollouts
        assert results[-1].rollouts <= phase["rollouts"]
    assert results[0] == results[1]


async def test_faults_of_the_engine_do_not_lower_a_prompts_score(tmp_path):
    world = World(
        tmp_path, agent=writer_alone, phases=[APO], rollout={"penalty": -1.0, "max_attempts": 1}
    )
    world.val = tasks(100, 24)
    world.concurrency = 1
    asked = []

    def fails(head):
        asked.append(head)
        return WANTED[0] in head and len(asked) % 5 == 0

    world.backend.fails = fails
    tuned = await world.tune()
    assert WANTED[0] in tuned.texts["writer"]
    assert world.losses.counts["prompts_rollouts_repeated"] > 0


async def test_an_outage_ends_the_phase_before_the_budget_is_used(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[APO])
    prompts = await world.learn()
    world.backend.fails = lambda head: True
    with pytest.raises(Exception, match="503"):
        await world.tune(prompts)
    assert len(await world.rollouts()) < 100
