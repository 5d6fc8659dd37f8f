"""verl's own loss on the tensors is the weighted mean over tokens that agl_torch takes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from agl_torch.losses import Terms
from agl_torch.losses.policy_gradient import ClipOptions, PolicyGradient
from agl_verl._loss import PolicyLoss, PolicyLossOptions
from agl_verl.convert import rows_of, tensors_of
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from agl_core.errors import TrainingError
from agl_core.training.algorithms import GRPO, RLOO, GRPOOptions, RLOOOptions
from tests.trainers.verl.convert_cases import FEW, Counted, case_of, cases, conversations, records
from tests.trainers.verl.verl_parts import (
    BatchData,
    actor_config,
    agg_loss,
    no_padding_2_padding,
    ppo_loss,
    prepare_micro_batches,
    response_from_nested,
    split,
)
from tests.trainers.verl.verl_parts import tensordict_utils as tu

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
LEVELS = ["merged", "transition"]


def rows_of_all(batch, level):
    return rows_of(batch, level=level, max_tokens=None, overlong="error").rows


def terms_in_order(batch, rows):
    """Index of each term in the order in which the rows train them."""
    calls = np.asarray(batch.calls)
    return [
        int(term) for row in rows for call in row.calls for term in np.flatnonzero(calls == call)
    ]


def verl_loss(tensors, loss: PolicyLoss, logprobs, *, ranks):
    """The sum over micro-batches and the mean over ranks of verl's ``ppo_loss``.

    `logprobs` are (rows, T): what the model says of each response token of each row.
    """
    tensors["place"] = torch.arange(len(tensors))
    config = actor_config(loss.actor)
    tokens = int(tensors["loss_mask"].sum())
    total = torch.zeros(())
    for _, micro_batches in split(tensors, ranks):
        for micro in micro_batches:
            tu.assign_non_tensor(micro, batch_num_tokens=tokens, dp_size=ranks)
            output = [
                torch.cat([torch.zeros(len(prompt) - 1), logprobs[int(at)], torch.zeros(1)])
                for prompt, at in zip(micro["prompts"].unbind(), micro["place"], strict=True)
            ]
            nested = torch.nested.as_nested_tensor(output, layout=torch.jagged)
            value, _ = ppo_loss(config, {"log_probs": nested}, micro)
            total = total + value / ranks
    return total


def torch_loss(batch, options, logprobs, terms):
    """The loss of agl_torch on the same log-probabilities, by term."""
    given = Terms(
        logprobs=logprobs,
        behaviour=torch.tensor(batch.logprobs)[terms],
        advantages=torch.tensor(batch.advantages)[terms],
        weights=torch.tensor(batch.weights)[terms],
        sequences=torch.tensor(batch.calls)[terms].long(),
    )
    losses = PolicyGradient(options)(given).losses
    return (losses * given.weights).sum() / given.weights.sum()


def compare(batch, level, options, *, ranks, agg_mode=None, spread=0.3):
    loss = PolicyLoss(
        PolicyLossOptions(
            **options.model_dump(), **({"loss_agg_mode": agg_mode} if agg_mode else {})
        )
    )
    rows = rows_of_all(batch, level)
    tensors = tensors_of(rows, multiple=ranks, pad_id=0, agg_mode=loss.agg_mode, ranks=ranks)
    chosen = terms_in_order(batch, dealt(tensors, rows))
    terms = torch.tensor(chosen)
    generator = torch.Generator().manual_seed(len(rows))
    moved = torch.randn(len(terms), generator=generator) * spread
    behaviour = torch.tensor(batch.logprobs)[terms]
    theirs = (behaviour + moved).requires_grad_()
    ours = theirs.detach().clone().requires_grad_()
    found = verl_loss(tensors, loss, placed(tensors, theirs), ranks=ranks)
    expected = torch_loss(batch, options, ours, terms)
    found.backward()
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=2e-5, abs=1e-6)
    assert torch.allclose(theirs.grad, ours.grad, rtol=2e-5, atol=1e-7)
    return found.item()


def dealt(tensors, rows):
    """The rows in the order in which the tensors have them; padding left out."""
    left = list(rows)
    found = []
    for prompt, response, weights in zip(
        tensors["prompts"].unbind(),
        tensors["responses"].unbind(),
        tensors["advantages"].unbind(),
        strict=True,
    ):
        for row in left:
            same = [row.prompt.tolist(), row.response.tolist()] == [
                prompt.tolist(),
                response.tolist(),
            ]
            if same and row.advantages.tolist() == weights.tolist():
                found.append(row)
                left = [other for other in left if other is not row]
                break
    assert not left
    return found


def placed(tensors, values):
    """Values of the trained tokens on (rows, T), with a constant between them."""
    masks = [mask.bool() for mask in tensors["response_mask"].unbind()]
    starts = np.cumsum([0, *[int(mask.sum()) for mask in masks]])
    return [
        torch.full(mask.shape, -3.0).masked_scatter(mask, values[start : start + int(mask.sum())])
        for mask, start in zip(masks, starts, strict=False)
    ]


ALGORITHMS = {
    "grpo": partial(GRPO, GRPOOptions()),
    "grpo by attempt": partial(GRPO, GRPOOptions(weighting="attempt")),
    "rloo by call": partial(RLOO, RLOOOptions(weighting="sequence")),
    "counted": Counted,
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_the_clipped_loss_is_that_of_agl_torch(algorithm, level, ranks):
    batch = case_of(conversations(), ALGORITHMS[algorithm]()).batch
    options = ClipOptions(clip_low=0.1, clip_high=0.28)
    values = {compare(batch, level, options, ranks=ranks, agg_mode=mode) for mode in MODES}
    assert max(values) - min(values) < 1e-5


@pytest.mark.parametrize("algorithm", ["grpo", "grpo by attempt", "rloo by call"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ratios_of_sequences_are_those_of_agl_torch(algorithm, ranks):
    batch = case_of(conversations(), ALGORITHMS[algorithm]()).batch
    options = ClipOptions(ratio="sequence", clip_low=0.05, clip_high=0.1)
    assert PolicyLoss(PolicyLossOptions(ratio="sequence")).row_per_choice
    compare(batch, "transition", options, ranks=ranks)


def test_no_bound_on_ratios_of_negative_advantages_unless_asked_for():
    batch = case_of(conversations(), GRPO(GRPOOptions())).batch
    compare(batch, "merged", ClipOptions(), ranks=1, spread=4.0)


@FEW
@given(records(), st.sampled_from(LEVELS), st.integers(1, 4))
def test_any_conversation_has_the_same_loss(drawn, level, ranks):
    batch = case_of(drawn, Counted()).batch
    compare(batch, level, ClipOptions(), ranks=ranks)


@FEW
@given(cases(), st.sampled_from(MODES), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9))
def test_any_loss_averages_to_the_weighted_mean(case, mode, ranks, micro, seed):
    rows = rows_of_all(case.batch, "merged")
    tensors = tensors_of(rows, multiple=ranks * micro, pad_id=3, agg_mode=mode, ranks=ranks)
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(len(mask), generator=generator) for mask in tensors["loss_mask"].unbind()]
    padded = torch.nn.utils.rnn.pad_sequence(drawn, batch_first=True)
    data = tensors.select("response_mask", "rollout_is_weights").to_padded_tensor()
    found = agg_loss(
        padded * data["rollout_is_weights"],
        data["response_mask"],
        mode,
        batch_num_tokens=int(tensors["loss_mask"].sum()),
        global_batch_size=tu.get(tensors, "global_batch_size"),
    )
    order = dealt(tensors, rows)
    weights = [row.weights[row.mask] for row in order]
    trained = [
        values[mask.bool()].numpy()
        for values, mask in zip(drawn, tensors["loss_mask"].unbind(), strict=True)
        if mask.any()
    ]
    expected = np.dot(np.concatenate(weights), np.concatenate(trained)) / sum(case.batch.weights)
    assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


@FEW
@given(cases(), st.sampled_from(LEVELS), st.integers(1, 5), st.integers(1, 3))
def test_any_number_of_rows_can_be_split(case, level, ranks, micro):
    rows = rows_of_all(case.batch, level)
    tensors = tensors_of(rows, multiple=ranks * micro, pad_id=3, agg_mode="token-mean", ranks=ranks)
    padding = tu.get(tensors, "padding_rows")
    assert len(tensors) == len(rows) + padding
    assert 0 <= padding < ranks * micro
    parts = list(split(tensors, ranks))
    assert len(parts) == ranks
    assert sum(len(batch) for _, batches in parts for batch in batches) == len(tensors)
    for mini, _ in parts:
        tu.assign_non_tensor(mini, use_dynamic_bsz=False, micro_batch_size_per_gpu=micro)
        assert sum(map(len, prepare_micro_batches(mini)[0])) == len(mini)
    empty = [mask for mask in tensors["loss_mask"].unbind() if not mask.any()]
    assert len(empty) == padding


@FEW
@given(cases(), st.sampled_from(LEVELS))
def test_every_stream_lies_beside_its_tokens(case, level):
    rows = rows_of_all(case.batch, level)
    tensors = tensors_of(rows, multiple=1, pad_id=0, agg_mode="token-mean")
    for at, row in enumerate(rows):
        whole = [*row.prompt.tolist(), *row.response.tolist()]
        assert tensors["input_ids"][at].tolist() == whole
        assert tensors["position_ids"][at].tolist() == list(range(len(whole)))
        assert tensors["prompts"][at].tolist() == row.prompt.tolist()
        assert tensors["responses"][at].tolist() == row.response.tolist()
        assert tensors["response_mask"][at].tolist() == row.mask.tolist()
        assert tensors["old_log_probs"][at].tolist() == row.logprobs.tolist()
        assert tensors["advantages"][at].tolist() == row.advantages.tolist()
    assert (tensors["loss_mask"].values() == tensors["response_mask"].values()).all()
    predicted = torch.nested.nested_tensor_from_jagged(
        torch.roll(tensors["input_ids"].values(), -1), tensors["input_ids"].offsets()
    )
    padded = no_padding_2_padding(predicted, tensors)
    for at, row in enumerate(rows):
        assert padded[at, : len(row.response)].tolist() == row.response.tolist()
    unpadded = response_from_nested(predicted, tensors["response_mask"])
    assert [list(map(int, part)) for part in unpadded.unbind()] == [
        row.response.tolist() for row in rows
    ]


def test_temperature_is_one_number_where_rows_agree_and_one_per_row_where_not():
    batch = case_of(conversations(), Counted()).batch
    rows = rows_of_all(batch, "transition")
    tensors = tensors_of(rows, multiple=8, pad_id=0, agg_mode="token-mean")
    assert tu.get(tensors, "temperature") == 1.0
    for term, call in enumerate(batch.calls):
        batch.temperatures[term] = 0.5 if call == 1 else 1.0
    rows = rows_of_all(batch, "transition")
    tensors = tensors_of(rows, multiple=1, pad_id=0, agg_mode="token-mean")
    assert tensors["temperature"].tolist() == [1.0, 0.5, *[1.0] * (len(rows) - 2)]


def test_ranks_read_about_as_many_tokens():
    case = case_of(conversations(), Counted())
    rows = rows_of_all(case.batch, "transition")
    tensors = tensors_of(rows, multiple=2, pad_id=0, agg_mode="token-mean", ranks=2)
    first, second = (int(part["input_ids"].offsets()[-1]) for part in BatchData(tensors).chunk(2))
    assert abs(first - second) <= max(len(row) for row in rows)


def test_tensors_survive_the_way_to_a_worker():
    import pickle

    tensors = tensors_of(
        rows_of_all(case_of(conversations(), Counted()).batch, "merged"),
        multiple=4,
        pad_id=0,
        agg_mode="token-mean",
    )
    again: TensorDict = pickle.loads(pickle.dumps(tensors))
    tu.assert_tensordict_eq(again, tensors)


def test_a_minibatch_without_weight_is_refused():
    with pytest.raises(TrainingError, match="0 rows has no weight"):
        tensors_of([], multiple=1, pad_id=0, agg_mode="token-mean")
