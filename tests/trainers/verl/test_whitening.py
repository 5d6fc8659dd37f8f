"""Estimators that whiten a whole batch, against verl's own functions on the same rows."""

from __future__ import annotations

import dataclasses
from array import array

import numpy as np
import pytest
import torch
from agl_testing.attempts import ScriptedAttempt
from agl_verl._algorithm import VerlAlgorithm, VerlAlgorithmOptions
from agl_verl._estimators import WHITENED
from agl_verl._loss import PolicyLoss, PolicyLossOptions
from agl_verl._whitening import whitened
from agl_verl.convert import rows_of
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.trainers.verl import verl_parts
from tests.trainers.verl.convert_cases import FEW, case_of
from tests.trainers.verl.test_trainer import batch_of, trainer

REWARDS = [[0.0, 1.0, 0.25], [1.0, 1.0, 1.0], [0.5, 0.0, 2.0, 0.0]]
"""Per task; the second has no spread."""


def algorithm(estimator, **options):
    return VerlAlgorithm(VerlAlgorithmOptions(estimator=estimator, **options))


def conversations():
    """An attempt per reward, of one to four turns of one to three tokens, which merge to one row."""
    for task, group in enumerate(REWARDS):
        for number, reward in enumerate(group):
            script = ScriptedAttempt(f"{task}{number}", task=f"t{task}", group=f"t{task}")
            history = [1, task]
            for turn in range(1 + (number + task) % 4):
                answer = [number, turn, 5][: 1 + (turn + number) % 3]
                script.call("a", history, answer)
                history = [*history, *answer, 9]
            script.reward(reward)
            yield script.record()


def returns_of(case):
    """Call to the return of its attempt and the index of its group."""
    return {
        triplet.call_id: (returned.value, index)
        for index, group in enumerate(case.groups)
        for returned, trajectories in zip(group.returns, group.trajectories, strict=True)
        for trajectory in trajectories
        for triplet in trajectory.calls
    }


def by_verl(estimator, rows, call_ids, returns):
    """What verl's function makes of rows that have the attempt's return on their last token."""
    longest = max(len(row.response) for row in rows)
    mask = torch.zeros(len(rows), longest, dtype=torch.float64)
    rewards, index = torch.zeros_like(mask), np.zeros(len(rows), dtype=np.int64)
    for at, row in enumerate(rows):
        mask[at, : len(row.response)] = torch.from_numpy(row.mask.astype(np.float64))
        value, index[at] = returns[call_ids[row.calls[0]]]
        rewards[at, int(np.flatnonzero(row.mask)[-1])] = value
    advantages, _ = verl_parts.ADV_ESTIMATOR_REGISTRY[estimator](
        token_level_rewards=rewards,
        response_mask=mask,
        index=index,
        config=verl_parts.AlgoConfig(),
    )
    return [advantages[at, : len(row.response)].numpy() for at, row in enumerate(rows)]


@pytest.mark.parametrize("estimator", WHITENED)
@pytest.mark.parametrize("weighting", ["token", "sequence", "attempt"])
def test_advantages_are_verls_on_the_same_rows(estimator, weighting):
    made = algorithm(estimator, weighting=weighting)
    case = case_of(list(conversations()), made)
    batch = PolicyLoss(PolicyLossOptions(**made.loss_options)).prepared(case.batch)
    rows = rows_of(batch, level="merged", max_tokens=None, overlong="error").rows
    assert len(rows) == sum(map(len, REWARDS))
    assert len({int(row.mask.sum()) for row in rows}) > 3
    assert any(len(row.calls) > 1 for row in rows)
    expected = by_verl(estimator, rows, batch.call_ids, returns_of(case))
    for row, advantages in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row.advantages[row.mask], advantages[row.mask], atol=1e-6)


def test_without_a_baseline_rows_of_calls_are_verls_too():
    made = algorithm("reinforce_plus_plus")
    case = case_of(list(conversations()), made)
    batch = whitened(case.batch)
    rows = rows_of(batch, level="transition", max_tokens=None, overlong="error").rows
    expected = by_verl("reinforce_plus_plus", rows, batch.call_ids, returns_of(case))
    for row, advantages in zip(rows, expected, strict=True):
        np.testing.assert_allclose(row.advantages, advantages, atol=1e-6)


def with_terms(values, weights):
    """A batch whose loss terms begin with these."""
    batch = batch_of([[1.0, 0.0]] * 8, turns=2)
    count = len(batch.advantages)
    assert len(values) <= count
    values = [*values, *[7.0] * (count - len(values))]
    weights = [*weights, *[0.0] * (count - len(weights))]
    return dataclasses.replace(batch, advantages=array("f", values), weights=array("f", weights))


VALUES = st.lists(st.integers(-20, 20).map(lambda quarters: quarters / 4), min_size=2, max_size=30)


@FEW
@given(VALUES)
def test_it_is_verls_whitening_and_leaves_what_is_not_trained(values):
    from verl.utils.torch_functional import masked_whiten

    assume(min(values) != max(values))  # verl leaves its rounding of a mean there
    found = whitened(with_terms(values, [0.5] * len(values))).advantages
    wide = torch.tensor(values, dtype=torch.float64)
    expected = masked_whiten(wide, torch.ones_like(wide)).tolist()
    assert found[: len(values)].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert set(found[len(values) :]) <= {7.0}


@pytest.mark.parametrize("values", [[0.1], [0.1] * 9])
def test_without_a_difference_there_is_no_advantage(values):
    found = whitened(with_terms(values, [1.0] * len(values))).advantages
    assert found[: len(values)].tolist() == [0.0] * len(values)


def test_a_batch_without_weight_stays_as_it_is():
    batch = with_terms([1.0, 2.0], [0.0, 0.0])
    assert whitened(batch) is batch


def test_it_runs_over_the_batch_and_not_over_a_minibatch():
    made = algorithm("reinforce_plus_plus_baseline", weighting="token")
    batch = case_of(list(conversations()), made).batch
    loss = PolicyLoss(PolicyLossOptions(**made.loss_options))
    one, workers = trainer(loss=loss, minibatches=3)
    one.train(batch)
    given = [
        tensors["advantages"].values()[tensors["response_mask"].values() > 0]
        for tensors in workers.updates
    ]
    assert len(given) == 3
    whole = torch.cat(given).double()
    assert float(whole.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(whole.std()) == pytest.approx(1.0, abs=1e-5)
    assert any(abs(float(part.mean())) > 0.1 for part in given)


def test_other_estimators_are_not_whitened():
    batch = case_of(list(conversations()), algorithm("grpo")).batch
    assert PolicyLoss(PolicyLossOptions()).prepared(batch) is batch
