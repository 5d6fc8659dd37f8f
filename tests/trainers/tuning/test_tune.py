"""Prompt phases over a real store, gateway and runner."""

from __future__ import annotations

from collections import Counter, defaultdict

from agl_testing.prompt_world import WANTED
from agl_tuning._outcomes import Outcomes
from agl_tuning._phase import RunPhase

import agl_core
from agl_core.interfaces import PromptRollout
from agl_core.types import PromptTemplate
from tests.trainers.tuning.world import WRITER, World, apo, ask, bootstrap, writer_alone


async def test_a_phase_improves_the_writers_prompt(tmp_path):
    world = World(tmp_path, phases=[apo()])
    tuned = await world.tune()
    assert sum(word in tuned.texts["writer"] for word in WANTED) >= 2, tuned
    assert "{item}" in tuned.texts["writer"]
    assert tuned.after.mean > tuned.before.mean
    assert tuned.rollouts <= 200
    rollouts = await world.rollouts()
    assert len(rollouts) == 8 + tuned.rollouts
    assert all(rollout.consumed for rollout in rollouts)
    # The planner's prompt is not tuned.
    assert {head for head in world.backend.heads if "Plan" in head} <= {
        f"Plan an answer about {task.input['item']}." for task in [*world.train, *world.val]
    }
    assert "apo: scores the incumbent prompts" in world.stages
    shown = [stage for stage in world.stages if stage.endswith(" of 200 rollouts")]
    assert 5 <= len(shown) <= 10


async def test_rollouts_name_phase_candidate_and_task_and_pair_seeds(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[bootstrap(), apo()])
    prompts = await world.learn()
    await world.tune(prompts, number=1)
    rollouts = [each for each in await world.rollouts() if each.group_id.startswith("prompts-1-")]
    assert Counter(each.mode for each in rollouts).keys() == {"train", "val"}
    held_out = {task.id for task in world.val}
    assert all((each.mode == "val") == (each.task.id in held_out) for each in rollouts)
    versions, seeds = defaultdict(set), defaultdict(list)
    for each in rollouts:
        _, number, candidate, task = each.group_id.split("-", 3)
        assert (number, task) == ("1", each.task.id)
        versions[candidate].add(each.resources_version)
        seeds[each.task.id, candidate].append(each.seed)
    assert all(len(published) == 1 for published in versions.values())
    assert len({next(iter(one)) for one in versions.values()}) == len(versions)
    by_task = defaultdict(set)
    for (task, _), drawn in seeds.items():
        by_task[task].add(drawn[0])
    assert all(len(firsts) == 1 for firsts in by_task.values()), "candidates have other seeds"
    assert len({seed for each in by_task.values() for seed in each}) == len(by_task)


async def test_prompts_of_two_agents_are_tuned_together_or_one_alone(tmp_path):
    prompts = {
        "planner": {"agents": ["plan*"], "captured": True},
        "writer": {"agents": ["writer"], "captured": True},
    }
    phases = [bootstrap(120), bootstrap(120, prompts=["writer"])]
    world = World(tmp_path, prompts=prompts, phases=phases)
    learned = await world.learn()
    assert learned["planner"].known == "Plan an answer about {item}."
    together = await world.tune(learned)
    alone = await world.tune(learned, number=1)
    assert together.texts.keys() == {"planner", "writer"}
    assert alone.texts.keys() == {"writer"}
    tried = [published["planner"].template for published in world.published if published]
    assert any("Examples" in text for text in tried)
    last = world.published[-3:]
    assert all(published["planner"].template == learned["planner"].known for published in last)


async def test_a_template_that_the_program_reads_is_tuned(tmp_path):
    async def reads(task):
        prompt = agl_core.resource("writer").format(item=task.input["item"])
        return await ask("writer", "", prompt)

    section = {"writer": {"agents": ["writer"], "text": WRITER}, "note": "Untuned {x}"}
    world = World(tmp_path, agent=reads, prompts=section, phases=[apo()])
    tuned = await world.tune()
    assert sum(word in tuned.texts["writer"] for word in WANTED) >= 2, tuned
    assert len(await world.rollouts()) == tuned.rollouts, "there was nothing to learn"
    assert world.published[0]["note"] == PromptTemplate(template="Untuned {x}")


async def test_failures_and_lost_infrastructure_are_counted(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[apo(100)], rollout={"penalty": -0.5})
    prompts = await world.learn()
    calls = Counter()

    def fails(head):
        calls[head] += 1
        return "milk" in head and calls[head] < 3

    def reward(task, output, attempt):
        if task.id == "task-3":
            raise ValueError("the judge is away")
        return 0.5

    world.backend.fails, world.reward = fails, reward
    async with world.open() as tuner:
        phase = RunPhase(world.setup, 0, prompts, scope="s", after_id="")
        asked = [PromptRollout(candidate={}, task=task, key=task.id) for task in world.train[:10]]
        outcomes = await world.alongside(phase.run(asked))
        assert tuner is not None
    failures = [outcome.failure for outcome in outcomes]
    assert failures == [None] * 3 + ["reward"] + [None] * 5 + ["engine"]
    assert [outcome.score for outcome in outcomes] == [0.5] * 3 + [-0.5] + [0.5] * 5 + [-0.5]
    counts = world.losses.counts
    assert counts["prompts_rollouts_failed_reward"] == 1
    assert counts["prompts_rollouts_failed_engine"] == 1


async def test_outcomes_hold_messages_once_and_no_tokens(tmp_path):
    async def talks(task):
        first = await ask("writer", WRITER.replace("{item}", "tea"), "One")
        await ask("writer", WRITER.replace("{item}", "tea"), "One")
        return first

    world = World(tmp_path, agent=talks, phases=[apo()])
    async with world.open():
        phase = RunPhase(world.setup, 0, {}, scope="s", after_id="")
        asked = [PromptRollout(candidate={}, task=task, key=task.id) for task in world.train[:3]]
        outcomes = await world.alongside(phase.run(asked))
        records = await world.source.collect([each.record.rollout.id for each in outcomes])
    heads = {id(call.messages[0]) for each in outcomes for call in each.record.calls}
    assert len(heads) == 1
    assert all(len(each.record.calls) == 2 for each in outcomes)
    assert all(len(each.record.rewards) == 1 for each in outcomes)
    for each in outcomes:
        for call in each.record.calls:
            assert not len(call.record.prompt_token_ids)
            assert all(not len(choice.token_ids) for choice in call.record.choices)
    slim = Outcomes(world.setup.adapter, world.losses, penalty=0.0).slim(records[0])
    assert [call.messages for call in slim.calls] == [call.messages for call in records[0].calls]
    assert [call.answer for call in slim.calls] == [call.answer for call in records[0].calls]
    assert [call.agent for call in slim.calls] == ["writer", "writer"]


async def test_a_rollout_that_somebody_cancelled_has_an_outcome(tmp_path):
    world = World(tmp_path, agent=writer_alone, phases=[apo()])
    async with world.open():
        phase = RunPhase(world.setup, 0, {}, scope="s", after_id="")

        async def cancels():
            await world.store.claim("worker", timeout_s=30)
            await world.source.abandon("run")

        import asyncio

        asked = [PromptRollout(candidate={}, task=task, key=task.id) for task in world.train[:2]]
        outcomes, _ = await asyncio.gather(phase.run(asked), cancels())
    assert [each.failure for each in outcomes] == ["cancelled", "cancelled"]
    assert "cancelled before it ran" in outcomes[1].record.attempt.failure.message
