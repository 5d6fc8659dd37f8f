from __future__ import annotations

import asyncio
import itertools
import sys
import threading

import pytest
from agl_gepa import Gepa
from agl_prompts import (
    EditorsFailedError,
    ProposalsRefusedError,
    RolloutsLostError,
    StudyEndedError,
)

from agl_core.types import FailureKind
from tests.trainers.gepa.world import World, words_editor

TWO = {"writer": "Answer.", "planner": "Plan."}


def refusals(world):
    counts = world.losses.counts
    return {cause: n for cause, n in counts.items() if cause.startswith("prompts_refused")}


def numbered(world):
    """An editor that answers differently every time, as a language model does."""
    return lambda messages: words_editor(messages, len(world.edits))


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"minibatch": 9},
        {"proposals": 3, "minibatch": 2},
        {"merge": True, "minibatch": 1},
        {"acceptance": "improvement_or_equal", "update": "all"},
        {"samples": 2},
    ],
)
async def test_budgets_are_kept_and_the_least_one_is_enough_for_a_proposal(tmp_path, chosen):
    study = World(tmp_path / "least", texts=TWO).study(**chosen)
    least = Gepa(study.options).least(study)
    await study.close()
    for budget in range(least, least + 60, 3):
        world = World(tmp_path / str(budget), texts=TWO, rollouts=budget, seed=budget)
        _, study = await world.optimize(**chosen)  # it raises if an evaluation exceeds the budget
        assert world.children
        assert len(world.ran) == budget - study.left
        assert 0 <= study.left < least - study.cost(len(world.val))


async def test_a_budget_below_the_least_one_allows_no_proposal(tmp_path):
    world = World(tmp_path, rollouts=5 + 2 * 3 + 5 - 1)
    await world.optimize()
    assert world.edits == []


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ("```\nAnswer.\n```", "same"),
        ("```\n  Answer.  \n```", "same"),
        ("```\n\n```", "empty"),
        ("no block at all", "empty"),
        ("", "empty"),
        ("<think>I wonder whether ```a``` is better", "empty"),
        ("```\nAnswer {invented}.\n```", "placeholders"),
        ("```\n" + "word " * 10_000 + "\n```", "too_long"),
    ],
)
async def test_a_refused_child_uses_no_rollout(tmp_path, answer, cause):
    world = World(tmp_path, rollouts=400)
    world.editor = lambda messages: answer
    with pytest.raises(ProposalsRefusedError):
        await world.optimize()
    assert world.children == []
    assert len(world.edits) == 20
    assert sum(refusals(world).values()) == 20
    assert refusals(world)[f"prompts_refused_{cause}"] >= 1
    assert len(world.of(world.train)) == 3 * 20


async def test_the_last_of_two_blocks_becomes_the_prompt(tmp_path):
    world, numbers = World(tmp_path), itertools.count()
    world.editor = lambda messages: f"Was:\n```\nold\n```\nBetter:\n```\nnew {next(numbers)}\n```"
    await world.optimize()
    assert world.children[:2] == [{"writer": "new 0"}, {"writer": "new 1"}]


async def test_blocks_inside_a_prompt_stay(tmp_path):
    world = World(tmp_path)
    text = "Answer in JSON:\n```json\n[1, 2]\n```\nNothing else."
    world.editor = lambda messages: f"```\n{text}\n```"
    with pytest.raises(ProposalsRefusedError, match="2 candidates in a row"):
        await world.optimize(max_refused=2)
    assert world.children == [{"writer": text}]


async def test_a_failed_call_of_the_editor_is_neither_repeated_nor_evaluated(tmp_path):
    world = World(tmp_path)
    edit = numbered(world)

    def editor(messages):
        if len(world.edits) % 2:
            raise OSError
        return edit(messages)

    world.editor = editor
    await world.optimize()
    assert len(world.edits) > 4
    assert len(world.children) == len(world.edits) // 2
    assert world.losses.counts["prompts_editor_failed"] == (len(world.edits) + 1) // 2
    assert refusals(world) == {}


async def test_three_failures_in_a_row_end_the_search_at_once(tmp_path):
    world = World(tmp_path, rollouts=1000)

    def editor(messages):
        raise OSError

    world.editor = editor
    with pytest.raises(EditorsFailedError):
        await world.optimize()
    assert len(world.edits) == 3
    assert len(world.of(world.train)) == 9


async def test_prompts_of_several_agents_are_edited_in_turn(tmp_path):
    texts = {"writer": "Answer.", "planner": "Plan.", "critic": "Judge."}
    world = World(tmp_path, texts=texts, rollouts=300)
    world.score = lambda texts, task, asking: (
        0.5
    )  # nothing is kept: every child's parent is the first
    world.editor = numbered(world)
    await world.optimize()
    changed = [[n for n in texts if child[n] != texts[n]] for child in world.children]
    assert len(changed) > 10
    assert changed == [[name] for name, _ in zip(itertools.cycle(texts), changed, strict=False)]


async def test_all_prompts_are_edited_at_once_if_asked_to(tmp_path):
    world = World(tmp_path, texts=TWO)
    await world.optimize(update="all")
    assert all(world.children[0][name] != text for name, text in TWO.items())


async def test_the_editor_sees_what_agents_of_the_prompt_did_and_why_they_earned(tmp_path):
    world = World(tmp_path, texts=TWO)
    await world.optimize()
    (request,) = world.edits[0]
    assert "Answer." in request["content"]
    assert "Plan." not in request["content"]
    tasks = [task for task in world.train if f"writer on {task.id}" in request["content"]]
    assert len(tasks) == 3
    for task in tasks:
        assert task.input in request["content"]
        assert f"needs {' and '.join(task.expected)}" in request["content"]


async def test_perfect_scores_end_the_search_with_the_reason(tmp_path):
    world = World(tmp_path, rollouts=1000)
    world.score = lambda texts, task, asking: 1.0
    with pytest.raises(StudyEndedError, match="Each of the 7 training tasks has a score of 1"):
        await world.optimize()
    assert world.edits == []
    assert len(world.of(world.train)) == 9


async def test_perfect_scores_are_edited_if_asked_to(tmp_path):
    world = World(tmp_path)
    world.score = lambda texts, task, asking: 1.0
    await world.optimize(skip_perfect_score=False)
    assert world.edits


@pytest.mark.parametrize("seed", range(5))
async def test_one_task_that_is_not_perfect_is_enough_to_go_on(tmp_path, seed):
    world = World(tmp_path, rollouts=150, seed=seed)
    world.editor = numbered(world)
    hard = world.train[0]
    world.score = lambda texts, task, asking: float(task != hard)
    await world.optimize()
    assert len(world.edits) > 5


async def test_lost_rollouts_change_no_comparison(tmp_path):
    """Of candidates with equal scores, one that lost some rollouts is neither better nor worse."""
    world = World(tmp_path, rollouts=300)
    world.editor = numbered(world)
    world.score = lambda texts, task, asking: 0.5
    lost = world.train[0]
    world.failure = lambda rollout: FailureKind.LOST if rollout.task == lost else None
    await world.optimize()
    assert len(world.children) > 5
    assert len(world.of(world.val)) == len(world.val), "no equal child is kept"


async def test_a_better_child_is_kept_though_it_loses_rollouts(tmp_path):
    world = World(tmp_path, rollouts=60)
    world.score = lambda texts, task, asking: 0.5 if texts == world.incumbent else 0.6
    children = itertools.count()
    world.failure = lambda rollout: (
        FailureKind.ENGINE
        if rollout.candidate != world.incumbent
        and "again" not in rollout.key
        and next(children) < 1
        else None
    )
    best, study = await world.optimize()
    assert best != world.incumbent
    assert study.scored(best).mean == pytest.approx(0.6)


async def test_an_incumbent_without_any_result_ends_the_search(tmp_path):
    world = World(tmp_path)
    world.failure = lambda rollout: FailureKind.LOST
    with pytest.raises(RolloutsLostError, match="5 validation tasks"):
        await world.optimize()


async def test_streams_of_the_process_are_left_alone(tmp_path, capfd):
    out, err = sys.stdout, sys.stderr
    await World(tmp_path).optimize()
    assert (sys.stdout, sys.stderr) == (out, err)
    assert capfd.readouterr() == ("", "")


async def test_a_cancelled_search_ends_its_thread(tmp_path):
    world, waits = World(tmp_path), asyncio.Event()

    async def run(asked):
        waits.set()
        await asyncio.Event().wait()

    world.run = run
    before = set(threading.enumerate())
    search = asyncio.ensure_future(world.optimize())
    await waits.wait()
    (thread,) = (each for each in threading.enumerate() if each not in before)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    thread.join(timeout=60)
    assert not thread.is_alive()


async def test_children_of_one_iteration_run_together(tmp_path):
    world = World(tmp_path, rollouts=200)
    await world.optimize(proposals=3, minibatch=2)
    assert max(len(batch) for batch in world.batches[1:]) >= 6
    parents, children = world.batches[1:3]
    assert {each.task.id for each in children} <= {each.task.id for each in parents}
    assert len(children) == 6


async def test_a_merged_candidate_has_prompts_of_several_parents(tmp_path):
    for seed in range(10):
        world = World(tmp_path / str(seed), texts=TWO, rollouts=400, seed=seed)
        await world.optimize(merge=True)
        if '"why": "merge"' in world.journal.read_text():
            return
    pytest.fail("no seed merged")


async def test_a_repeated_phase_calls_no_editor_and_gives_the_same_best(tmp_path):
    first = World(tmp_path)
    best, _ = await first.optimize()
    again = World(tmp_path)
    assert (await again.optimize())[0] == best
    assert again.edits == []
    assert [each.key for each in again.ran] == [each.key for each in first.ran]
