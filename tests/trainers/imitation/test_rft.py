"""The algorithm ``rft``: which attempts of a group are imitated, and with which weights."""

from __future__ import annotations

import math

import pytest
from agl_imitation._rft import RFT, RFTOptions
from agl_testing.algorithm_contract import AlgorithmContract
from agl_testing.bandit import make_group, make_triplet
from agl_testing.plugin_contract import PluginContract
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import forest
from agl_core.config.validation import validate
from agl_core.errors import ConfigError
from agl_core.training import Batcher
from agl_core.types import AgentReturn, FailureKind

RETURNS = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=1, max_size=6)


class TestRFT(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: RFT(RFTOptions())


class TestRAFT(AlgorithmContract):
    @pytest.fixture
    def build_algorithm(self):
        return lambda: RFT(RFTOptions(keep=1, weighting="attempt"))


class TestPlugin(PluginContract):
    plugin = "agl_imitation.plugin"


def earned(value, **fields):
    return AgentReturn(rollout_id="ro", attempt_id="at", agent="agent", value=value, **fields)


def group_of(returns, *, lengths=None):
    sizes = lengths or [2] * len(returns)
    return make_group(
        [each if isinstance(each, AgentReturn) else earned(each) for each in returns],
        [[make_triplet(f"call_{index}", range(size))] for index, size in enumerate(sizes)],
    )


def weights_of(group, **options):
    return {
        each.call_id: each.weights
        for each in RFT(RFTOptions(**options)).credit(group)
        if any(each.weights)
    }


def kept(returns, **options):
    return [int(call.removeprefix("call_")) for call in weights_of(group_of(returns), **options)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 3]),
        ({"keep": 1}, [1]),
        ({"keep": 3}, [1, 2, 3]),
        ({"min_reward": 0.5}, [1, 2, 3]),
        ({"min_reward": 0.5, "keep": 1}, [1]),
        ({"min_reward": 2.0}, []),
    ],
)
def test_which_attempts_are_kept(options, expected):
    assert kept([0.0, 1.0, 0.5, 1.0], **options) == expected


def test_a_group_of_equal_returns_is_trained_only_on_request():
    assert kept([1.0, 1.0]) == []
    assert kept([1.0, 1.0], min_reward=1.0) == []
    assert kept([1.0, 1.0], equal_groups="train") == [0, 1]
    assert kept([1.0, 1.0], equal_groups="train", keep=1) == [0]
    assert kept([0.0, 0.0], equal_groups="train", min_reward=1.0) == []


def test_a_failed_attempt_counts_in_the_comparison_and_is_never_imitated():
    failed = earned(0.0, failure=FailureKind.AGENT)
    assert kept([failed, -1.0]) == [1]
    assert kept([failed, failed], equal_groups="train") == []


def test_rewards_of_runs_calls_and_the_continued_choice_belong_to_the_return():
    lesser = earned(1.0)
    assert kept([earned(0.0, calls={"call_0": 2.0}), lesser]) == [0]
    assert kept([earned(0.0, runs={"": 2.0}), lesser]) == [0]
    assert kept([earned(0.0, choices={"call_0": {0: 2.0}}), lesser]) == [0]


def test_the_best_sibling_that_a_reward_names_is_imitated():
    siblings = [make_triplet("call_0", [1], choice=at, continued=at == 0) for at in range(3)]
    returns = [earned(0.0, choices={"call_0": {1: 2.0, 2: 1.0}}), earned(1.0)]
    credits_ = RFT(RFTOptions()).credit(
        make_group(returns, [siblings, [make_triplet("call_1", [9])]])
    )
    trained = {(each.call_id, each.choice) for each in credits_ if any(each.weights)}
    assert trained == {("call_0", 1), ("call_1", 0)}


@pytest.mark.parametrize(
    ("weighting", "expected"), [("token", 1.0), ("sequence", 0.25), ("attempt", 0.25)]
)
def test_tokens_share_the_loss_as_configured(weighting, expected):
    group = group_of([0.0, 1.0], lengths=[2, 4])
    assert weights_of(group, weighting=weighting) == {"call_1": [expected] * 4}


@given(RETURNS, st.none() | st.integers(1, 3), st.none() | st.sampled_from([0.0, 1.0]))
def test_no_attempt_is_kept_before_a_better_one(returns, keep, least):
    chosen = kept(returns, keep=keep, min_reward=least, equal_groups="train")
    others = [value for index, value in enumerate(returns) if index not in chosen]
    bound = -math.inf if least is None else least
    if chosen:
        worst = min(returns[index] for index in chosen)
        assert worst >= max([*others, bound] if keep is None else [bound])
        assert all(value <= worst for value in others)
    else:
        assert max(returns) < bound
    assert keep is None or len(chosen) <= keep


@given(RETURNS, st.integers(-5, 5))
def test_a_constant_added_to_every_return_changes_nothing(returns, constant):
    assert kept(returns) == kept([value + constant for value in returns])


def test_a_step_without_a_kept_attempt_is_counted_and_builds_no_batch():
    batches, losses = Batcher(RFT(RFTOptions()), forest).build([group_of([1.0, 1.0])], step=0)
    assert batches == []
    assert losses.counts == {"groups_without_signal": 1, "policies_without_weight": 1}


@pytest.mark.parametrize(
    "options", [{"keep": 0}, {"min_reward": float("nan")}, {"equal_groups": "some"}, {"top": 1}]
)
def test_a_wrong_option_is_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        validate(RFTOptions, options, where="algorithm")
