"""verl's estimators on the attempts of a group, against core's and against numbers by hand."""

from __future__ import annotations

import math

import pytest
from agl_verl._estimators import (
    DECOUPLED,
    SCALED,
    USABLE,
    EstimatorName,
    decoupled_advantages,
    group_advantages,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from agl_core.errors import TrainingError
from agl_core.training.advantages import grpo_advantages, rloo_advantages
from agl_core.types import AgentReturn, FailureKind
from tests.trainers.verl import verl_parts

RETURNS = st.lists(st.floats(-10, 10).map(lambda value: round(value, 3)), min_size=2, max_size=8)


def of(name, returns, **options):
    if name == DECOUPLED:
        given = [earned(good=value) for value in returns]
        return decoupled_advantages(given, [3] * len(returns), weights={}, **options)
    return group_advantages(name, returns, [3] * len(returns), **options)


@settings(deadline=None, max_examples=50)
@given(RETURNS, st.sampled_from(["grpo", "grpo_vectorized"]), st.booleans())
def test_grpo_is_core_grpo(returns, name, scale):
    expected = grpo_advantages(returns, scale=scale)
    assert of(name, returns, scale=scale) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(RETURNS, st.sampled_from(["rloo", "rloo_vectorized"]))
def test_rloo_is_core_rloo(returns, name):
    assert of(name, returns) == pytest.approx(rloo_advantages(returns), abs=1e-9)


def test_passk_raises_the_best_alone():
    returns = [0.0, 1.0, 0.25]
    assert of("grpo_passk", returns, scale=False) == [0.0, 0.75, 0.0]
    spread = math.sqrt(sum((value - 1.25 / 3) ** 2 for value in returns) / 2)
    assert of("grpo_passk", returns) == pytest.approx([0.0, 0.75 / spread, 0.0], rel=1e-4)


def test_opo_weighs_its_baseline_by_length():
    found = group_advantages("opo", [1.0, 0.0], [3, 1])
    assert found == pytest.approx([0.25, -0.75])


def test_an_attempt_without_tokens_does_not_break_the_baseline():
    assert group_advantages("rloo", [1.0, 0.0], [0, 2]) == [1.0, -1.0]


@pytest.mark.parametrize("name", [name for name in USABLE if name != "reinforce_plus_plus"])
@pytest.mark.parametrize("returns", [[0.1, 0.1, 0.1], [3.0]])
def test_without_a_difference_there_is_no_advantage(name, returns):
    assert of(name, returns) == [0.0] * len(returns)


@pytest.mark.parametrize("name", USABLE)
def test_an_empty_group_is_an_error(name):
    with pytest.raises(TrainingError, match="without attempts"):
        of(name, [])


def test_booleans_are_returns():
    assert of("rloo", [True, False]) == [1.0, -1.0]


def test_what_cannot_be_used_is_named_with_what_can():
    usable = TypeAdapter(EstimatorName)
    refused = set(verl_parts.ADV_ESTIMATOR_REGISTRY) - set(USABLE)
    assert set(SCALED) < set(USABLE) < set(verl_parts.ADV_ESTIMATOR_REGISTRY)
    for name in refused:
        with pytest.raises(ValidationError, match=f"{name}' .*can be used: grpo, ") as raised:
            usable.validate_python(name)
        assert "is not one of verl's" not in str(raised.value)
    with pytest.raises(ValidationError, match="'ppo' is not one of verl's"):
        usable.validate_python("ppo")


def earned(*, failure=None, value=0.0, calls=None, **channels):
    return AgentReturn(
        rollout_id="ro", attempt_id="at", agent="a", value=value, channels=channels,
        failure=failure, calls=calls or {},
    )  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(-8, 8), st.integers(0, 3)), min_size=2, max_size=8),
    st.booleans(),
)
def test_gdpo_is_verls_before_it_whitens(rewards, scale):
    import numpy as np
    import torch
    from verl.utils.torch_functional import masked_whiten

    returns = [earned(good=float(good), short=float(short)) for good, short in rewards]
    found = decoupled_advantages(returns, [2] * len(returns), weights={"short": 0.5}, scale=scale)
    mask = torch.ones(len(rewards), 2)
    expected, _ = verl_parts.ADV_ESTIMATOR_REGISTRY["gdpo"](
        token_level_rewards=torch.zeros_like(mask),
        response_mask=mask,
        index=np.zeros(len(rewards), dtype=np.int64),
        norm_adv_by_std_in_grpo=scale,
        config={"gdpo_reward_keys": ["good", "short"], "gdpo_reward_weights": [1.0, 0.5]},
        non_tensor_batch={
            "good": [good for good, _ in rewards], "short": [short for _, short in rewards],
        },
        batch={"prompts": torch.zeros(len(rewards), 1), "attention_mask": torch.ones(len(rewards), 3).long()},
    )  # fmt: skip
    if max(found) - min(found) < 1e-6:
        return  # verl leaves its rounding of a mean there
    whole = torch.tensor(found)[:, None].expand(-1, 2)
    whitened = masked_whiten(whole, mask)
    torch.testing.assert_close(whitened.float(), expected, atol=2e-3, rtol=2e-3)


def test_gdpo_gives_each_channel_the_same_say():
    large = [earned(good=value, short=100.0 * (1 - value)) for value in (0.0, 1.0)]
    assert decoupled_advantages(large, [1, 1], weights={}) == pytest.approx([0.0, 0.0], abs=1e-3)
    alone = decoupled_advantages(large, [1, 1], weights={"short": 0.0})
    assert alone == pytest.approx(of("grpo", [0.0, 1.0]))


def test_gdpo_takes_a_penalty_in_every_channel():
    mixed = [earned(good=1.0), earned(failure=FailureKind.AGENT, value=-1.0)]
    assert decoupled_advantages(mixed, [1, 1], weights={}) == pytest.approx(of("grpo", [1, -1]))


def test_gdpo_does_not_mix_rewards_of_calls_into_a_channel():
    with pytest.raises(TrainingError, match="'at' has rewards of single runs or calls"):
        decoupled_advantages([earned(good=1.0, calls={"c": 1.0})], [1], weights={})


def test_gpg_depends_on_the_rewards_of_other_groups():
    import numpy as np
    import torch

    def first(returns, index):
        rewards = torch.tensor(returns)[:, None]
        found, _ = verl_parts.ADV_ESTIMATOR_REGISTRY["gpg"](
            rewards, torch.ones_like(rewards), np.array(index)
        )
        return found[0, 0].item()

    assert first([1.0, 0.0], [0, 0]) != first([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1])
