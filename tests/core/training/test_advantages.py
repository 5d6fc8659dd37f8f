import math

import pytest
from agl_testing.bandit import make_group, make_triplet
from hypothesis import given
from hypothesis import strategies as st

from agl_core.errors import TrainingError
from agl_core.training.advantages import (
    broadcast,
    grpo_advantages,
    reinforce_advantages,
    rloo_advantages,
)
from agl_core.types import AgentReturn

RETURNS = st.lists(st.floats(-100, 100), min_size=1, max_size=8)


def test_grpo_is_the_standard_score():
    assert grpo_advantages([1.0, 0.0, 0.0, 1.0]) == pytest.approx(
        [math.sqrt(3) / 2, -math.sqrt(3) / 2, -math.sqrt(3) / 2, math.sqrt(3) / 2], abs=1e-5
    )


def test_grpo_without_scale_is_the_deviation():
    assert grpo_advantages([1.0, 0.0, 0.5], scale=False) == [0.5, -0.5, 0.0]


def test_rloo_leaves_one_out():
    assert rloo_advantages([1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])


def test_reinforce_is_the_return():
    assert reinforce_advantages([1.0, 0.0]) == [1.0, 0.0]
    assert reinforce_advantages([1.0, 0.0], baseline="mean") == [0.5, -0.5]


BASELINES = [
    grpo_advantages,
    lambda returns: grpo_advantages(returns, scale=False),
    rloo_advantages,
    lambda returns: reinforce_advantages(returns, baseline="mean"),
]


@pytest.mark.parametrize("estimator", [*BASELINES, reinforce_advantages])
def test_an_empty_group_is_an_error(estimator):
    with pytest.raises(TrainingError, match="without attempts"):
        estimator([])


@pytest.mark.parametrize("estimator", BASELINES)
def test_a_group_of_one_has_no_advantage(estimator):
    assert estimator([3.0]) == [0.0]


@pytest.mark.parametrize("estimator", BASELINES)
@given(value=st.floats(-1e6, 1e6), count=st.integers(1, 9))
def test_equal_returns_leave_no_rounding_behind(estimator, value, count):
    assert estimator([value] * count) == [0.0] * count


@pytest.mark.parametrize("estimator", BASELINES)
@given(returns=RETURNS)
def test_advantages_sum_to_zero_and_keep_the_order(estimator, returns):
    advantages = estimator(returns)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-6)
    pairs = sorted(zip(returns, advantages, strict=True))
    assert [advantage for _, advantage in pairs] == sorted(advantages)


def earned(value=0.0, **units):
    return AgentReturn(rollout_id="ro", attempt_id="at", agent="agent", value=value, **units)


def credited(returns, calls, *, advantages=None, weighting="token"):
    """(call id, choice) to (advantage, weight of the first token)."""
    group = make_group(returns, calls)
    advantages = advantages or [0.0] * len(returns)
    return {
        (credit.call_id, credit.choice): (credit.advantages[0], credit.weights[0])
        for credit in broadcast(group, advantages, weighting=weighting)
    }


def test_every_call_gets_its_attempts_advantage():
    calls = [
        [make_triplet("a", [1]), make_triplet("b", [1, 2], ordinal=1)],
        [make_triplet("c", [1])],
    ]
    values = credited([earned(), earned()], calls, advantages=[0.5, -0.5])
    assert values == {("a", 0): (0.5, 1.0), ("b", 0): (0.5, 1.0), ("c", 0): (-0.5, 1.0)}


def test_a_reward_for_a_call_counts_against_calls_of_the_same_index():
    calls = [
        [make_triplet("a0", [1]), make_triplet("a1", [1], ordinal=1)],
        [make_triplet("b0", [1]), make_triplet("b1", [1], ordinal=1)],
        [make_triplet("c0", [1])],
    ]
    returns = [earned(calls={"a1": 1.0}), earned(), earned(calls={"c0": 3.0})]
    values = {call: value for (call, _), (value, _) in credited(returns, calls).items()}
    assert values == {"a0": -1.0, "b0": -1.0, "c0": 2.0, "a1": 0.5, "b1": -0.5}


def test_a_reward_for_a_run_reaches_its_calls_alone():
    def runs(name):
        return [
            make_triplet(f"{name}0", [1], run_ordinal=0, agent_run_id=f"{name}r0"),
            make_triplet(f"{name}1", [1], ordinal=1, run_ordinal=1, agent_run_id=f"{name}r1"),
            make_triplet(f"{name}2", [1], ordinal=2, run_ordinal=1, agent_run_id=f"{name}r1"),
        ]

    returns = [earned(runs={"ar1": 1.0}), earned()]
    values = credited(returns, [runs("a"), runs("b")])
    assert {call: value for (call, _), (value, _) in values.items()} == {
        "a0": 0.0,
        "a1": 0.5,
        "a2": 0.5,
        "b0": 0.0,
        "b1": -0.5,
        "b2": -0.5,
    }


def test_terms_of_all_units_add_up():
    calls = [
        [make_triplet("a", [1], agent_run_id="ra")],
        [make_triplet("b", [1], agent_run_id="rb")],
    ]
    returns = [earned(runs={"ra": 2.0}, calls={"a": 4.0}), earned()]
    values = credited(returns, calls, advantages=[0.5, -0.5])
    assert values["a", 0][0] == 0.5 + 1.0 + 2.0
    assert values["b", 0][0] == -3.5


def test_a_unit_that_one_attempt_has_alone_adds_nothing():
    calls = [[make_triplet("a", [1]), make_triplet("b", [1], ordinal=1)], [make_triplet("c", [1])]]
    values = credited([earned(calls={"b": 5.0}), earned()], calls, advantages=[0.5, -0.5])
    assert values["b", 0][0] == 0.5


def siblings(name, *, continued):
    return [
        make_triplet(name, [index], choice=index, continued=index == continued)
        for index in range(3)
    ]


def test_named_choices_count_against_each_other():
    returns = [earned(choices={"a": {1: 1.0, 2: 0.0}}), earned()]
    values = credited(
        returns,
        [siblings("a", continued=0), siblings("b", continued=0)],
        advantages=[0.25, -0.25],
    )
    assert values == {
        ("a", 0): (0.25, 1.0),
        ("a", 1): (0.5, 1.0),
        ("a", 2): (-0.5, 1.0),
        ("b", 0): (-0.25, 1.0),
    }


def test_a_named_choice_that_went_on_keeps_its_attempts_advantage():
    returns = [earned(choices={"a": {0: 1.0, 1: 0.0}}), earned()]
    values = credited(
        returns,
        [siblings("a", continued=0), [make_triplet("b", [1])]],
        advantages=[0.25, -0.25],
    )
    assert values["a", 0][0] == 0.25 + 0.5
    assert values["a", 1][0] == -0.5


def test_without_a_continued_choice_only_named_ones_are_trained():
    returns = [earned(choices={"a": {2: 1.0}}), earned()]
    calls = [siblings("a", continued=None), siblings("b", continued=None)]
    assert set(credited(returns, calls, advantages=[1.0, -1.0])) == {("a", 2)}


@pytest.mark.parametrize(
    ("weighting", "weights"),
    [
        ("token", {"a": 1.0, "b": 1.0, "c": 1.0}),
        ("sequence", {"a": 0.25, "b": 0.5, "c": 0.5}),
        ("attempt", {"a": 1 / 6, "b": 1 / 6, "c": 0.5}),
    ],
)
def test_weightings(weighting, weights):
    calls = [
        [make_triplet("a", [1, 2, 3, 4]), make_triplet("b", [1, 2], ordinal=1)],
        [make_triplet("c", [1, 2])],
    ]
    values = credited([earned(), earned()], calls, weighting=weighting)
    assert {call: weight for (call, _), (_, weight) in values.items()} == pytest.approx(weights)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=4))
def test_weighting_by_attempt_ignores_turns_and_lengths(attempts):
    calls = [
        [make_triplet(f"{at}-{j}", [1] * length, ordinal=j) for j, length in enumerate(lengths)]
        for at, lengths in enumerate(attempts)
    ]
    group = make_group([earned() for _ in attempts], calls)
    totals = dict.fromkeys(range(len(attempts)), 0.0)
    for credit in broadcast(group, [0.0] * len(attempts), weighting="attempt"):
        totals[int(credit.call_id.split("-")[0])] += sum(credit.weights)
    assert list(totals.values()) == pytest.approx([1.0] * len(attempts))


def test_lists_of_different_length_are_an_error():
    group = make_group([earned()], [[make_triplet("a", [1])]])
    with pytest.raises(TrainingError, match="2 advantages"):
        broadcast(group, [0.0, 1.0], weighting="token")
