"""The optimiser proposes what gepa's own loop proposes on the same evaluator, editor and seed."""

from __future__ import annotations

from collections import Counter

import gepa
import pytest
from agl_gepa._records import records
from agl_prompts._seen import seen_of
from gepa import EvaluationBatch
from gepa.strategies.proposal_sampling import IndependentSampling

from agl_core.interfaces import PromptRollout
from tests.trainers.gepa.world import World, tasks, words_editor

BUDGET = 150


class Plain:
    """An adapter without a study: it asks the world itself, and shows the same examples."""

    propose_new_texts = None

    def __init__(self, world, options):
        self.world, self.options = world, options
        self.askings, self.proposed = Counter(), []

    def evaluate(self, batch, candidate, capture_traces=False):
        if candidate not in self.proposed:
            self.proposed.append(dict(candidate))
        results = [
            seen_of(task, [self.world.outcome(self.rollout(candidate, task))]) for task in batch
        ]
        return EvaluationBatch(
            outputs=list(batch), scores=[each.score for each in results], trajectories=results
        )

    def rollout(self, candidate, task):
        asking = self.askings[str(candidate), task.id]
        self.askings[str(candidate), task.id] += 1
        return PromptRollout(candidate=candidate, task=task, key="", asking=asking)

    def make_reflective_dataset(self, candidate, eval_batch, components_to_update):
        prompts, seen = self.world.prompts, eval_batch.trajectories
        return {
            name: records(
                prompts[name], candidate[name], seen, max_chars=self.options.example_chars
            )
            for name in components_to_update
        }


class Quiet:
    def log(self, message):
        pass


def by_gepa(world, options):
    """Run gepa with its own adapter, editor and count of rollouts."""
    adapter = Plain(world, options)
    iteration = options.proposals * (2 * options.minibatch + len(world.val))
    result = gepa.optimize(
        seed_candidate=world.incumbent,
        trainset=world.train,
        valset=world.val,
        adapter=adapter,
        reflection_lm=lambda prompt: words_editor([{"role": "user", "content": prompt}]),
        reflection_minibatch_size=options.minibatch,
        candidate_selection_strategy=options.parents,
        module_selector=options.update,
        sampling_strategy=(
            IndependentSampling(options.proposals) if options.proposals > 1 else None
        ),
        stop_callbacks=lambda state: BUDGET - adapter.askings.total() < iteration,
        logger=Quiet(),
        seed=world.seed,
    )
    return adapter, result


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"minibatch": 2, "parents": "current_best"},
        {"parents": "top_k_pareto", "update": "all"},
        {"parents": "epsilon_greedy", "proposals": 2},
    ],
)
async def test_the_same_candidates_as_gepas_own_loop(tmp_path, seed, chosen):
    world = World(
        tmp_path,
        texts={"writer": "Answer.", "planner": "Plan."},
        train=tasks("train", 7, seed=seed),
        val=tasks("val", 5, seed=seed),
        rollouts=BUDGET,
        seed=seed,
    )

    best, study = await world.optimize(**chosen)

    adapter, result = by_gepa(world, study.options)
    assert len(world.children) >= 5
    assert [world.incumbent, *world.children] == adapter.proposed
    kept = [texts for texts in adapter.proposed if study.scored(texts)]
    assert len(kept) > 2
    assert kept == result.candidates
    assert best == result.best_candidate
    assert study.left == BUDGET - adapter.askings.total()
