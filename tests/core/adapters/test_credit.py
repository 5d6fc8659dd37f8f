import pytest
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter
from agl_core.errors import CaptureError, ConfigError, RewardError
from agl_core.testing.attempts import FROZEN, TRAINED, CallOptions, ScriptedAttempt
from agl_core.types import AttemptStatus, Policy


def adapt(attempt, *, agents=("writer",), weights=None, status=AttemptStatus.SUCCEEDED):
    adapter = TrajectoryAdapter(agents, policies=[TRAINED, FROZEN], channel_weights=weights)
    return adapter.adapt(attempt.record(status))


def one_call(**fields):
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], **fields)
    return attempt, call_id


def test_each_unit_gets_the_rewards_that_name_it():
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], options=CallOptions(run="r1"))
    attempt.reward(1.0)
    attempt.reward(0.5, agent="writer")
    attempt.reward(0.25, agent_run="r1")
    attempt.reward(0.125, call=call_id)
    returned = adapt(attempt).returns["writer"]
    assert returned.value == 1.5
    assert returned.runs == {"r1": 0.25}
    assert returned.calls == {call_id: 0.125}
    assert adapt(attempt).score == 1.875


def test_the_attempts_reward_reaches_every_trained_agent():
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2])
    attempt.call("b", [1], [2])
    attempt.reward(2.0)
    adapted = adapt(attempt, agents=["*"])
    assert {agent: returned.value for agent, returned in adapted.returns.items()} == {
        "a": 2.0,
        "b": 2.0,
    }
    assert adapted.score == 2.0


def test_channels_are_weighted_in_the_return_and_logged_without():
    attempt, _ = one_call()
    attempt.reward(1.0)
    attempt.reward(10.0, channel="length")
    attempt.reward(5.0, channel="style")
    adapted = adapt(attempt, weights={"length": -0.1, "style": 0})
    assert adapted.score == adapted.returns["writer"].value == 0.0
    assert adapted.channels == {"main": 1.0, "length": 10.0, "style": 5.0}
    assert adapted.returns["writer"].channels == adapted.channels


def test_a_bool_is_a_number():
    attempt, _ = one_call()
    attempt.reward(True)
    value = adapt(attempt).returns["writer"].value
    assert (value, type(value)) == (1.0, float)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "0.5", [1.0]])
def test_what_is_no_finite_number_is_an_error(value):
    attempt, _ = one_call()
    attempt.reward(value, channel="style")
    with pytest.raises(RewardError, match=r"style.*finite number"):
        adapt(attempt)


@pytest.mark.parametrize(
    ("target", "known"),
    [({"call": "c9"}, "call_at_1"), ({"agent_run": "r9"}, "r1"), ({"agent": "x"}, "writer")],
)
def test_an_unknown_target_lists_the_known_ones(target, known):
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2], options=CallOptions(run="r1"))
    attempt.reward(1.0, **target)
    with pytest.raises(RewardError, match=f"never had.*{known}"):
        adapt(attempt)


@pytest.mark.parametrize(
    "target", [{"call": "c", "agent": "writer"}, {"choice": 0}, {"agent": "a", "choice": 1}]
)
def test_a_target_names_one_unit(target):
    attempt, _ = one_call()
    attempt.reward(1.0, **target)
    with pytest.raises(RewardError, match="name one call"):
        adapt(attempt)


def test_no_reward_is_an_error_even_without_calls():
    with pytest.raises(RewardError, match="No reward arrived"):
        adapt(ScriptedAttempt())


def test_rewards_of_the_untrained_count_in_the_score_alone():
    attempt, _ = one_call()
    other = attempt.call("planner", [3], [4], options=CallOptions(run="r1"))
    attempt.reward(1.0, call=other)
    attempt.reward(1.0, agent="planner")
    attempt.reward(1.0, agent_run="r1")
    adapted = adapt(attempt)
    assert adapted.score == 3.0
    assert adapted.returns["writer"].value == 0.0
    assert adapted.losses.counts == {"rewards_untrained": 3, "agents_without_reward": 1}


def test_a_reward_for_a_refused_call_is_counted():
    attempt, _ = one_call()
    refused = attempt.call("writer", [], [], status_code=500)
    attempt.reward(1.0, call=refused)
    attempt.reward(1.0)
    assert adapt(attempt).losses.counts == {"calls_refused": 1, "rewards_of_dropped_calls": 1}


def test_choice_zero_of_a_single_answer_is_the_call():
    attempt, call_id = one_call()
    attempt.reward(1.0, call=call_id, choice=0)
    returned = adapt(attempt).returns["writer"]
    assert (returned.calls, returned.choices) == ({call_id: 1.0}, {})


def two_choices(*, go_on):
    attempt = ScriptedAttempt()
    call_id = attempt.call("writer", [1], [2], [3])
    if go_on:
        attempt.call("writer", [1, 3, 4], [5])
    return attempt, call_id


def test_a_reward_for_a_call_goes_to_the_choice_that_went_on():
    attempt, call_id = two_choices(go_on=True)
    attempt.reward(1.0, call=call_id)
    adapted = adapt(attempt)
    assert adapted.returns["writer"].calls == {call_id: 1.0}
    rewards = {
        (triplet.call_id, triplet.choice): triplet.reward
        for path in adapted.trajectories["writer"]
        for triplet in path.calls
    }
    assert rewards[call_id, 0] is None
    assert rewards[call_id, 1] == 1.0


def test_a_reward_may_name_any_choice():
    attempt, call_id = two_choices(go_on=True)
    attempt.reward(1.0, call=call_id, choice=0)
    attempt.reward(0.5, call=call_id, choice=0)
    attempt.reward(0.25, call=call_id, choice=1)
    returned = adapt(attempt).returns["writer"]
    assert returned.choices == {call_id: {0: 1.5, 1: 0.25}}
    assert returned.calls == {}


def test_a_call_that_went_on_from_no_choice_needs_the_choice_named():
    attempt, call_id = two_choices(go_on=False)
    attempt.reward(1.0, call=call_id)
    with pytest.raises(RewardError, match=r"\[0, 1\] and went on from none.*choice="):
        adapt(attempt)


def test_an_unknown_choice_is_an_error():
    attempt, call_id = two_choices(go_on=True)
    attempt.reward(1.0, call=call_id, choice=7)
    with pytest.raises(RewardError, match="choice 7"):
        adapt(attempt)


def test_choices_that_nothing_trains_are_counted():
    attempt, _ = two_choices(go_on=True)
    attempt.reward(1.0)
    assert adapt(attempt).losses.counts == {"choices_without_reward": 1}


@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.TIMED_OUT])
def test_a_failed_attempt_is_taken_without_its_rewards(status):
    attempt, _ = one_call()
    attempt.reward(float("nan"))
    adapted = adapt(attempt, status=status)
    assert adapted.returns["writer"].value == adapted.score == 0.0
    assert adapted.losses.counts == {"rewards_of_failed_attempts": 1}


def test_outside_training_the_score_counts_and_nobody_is_trained():
    attempt = ScriptedAttempt(mode="val")
    call_id = attempt.call("writer", [], [])
    attempt.reward(0.5, call=call_id)
    attempt.reward(0.25, agent="writer")
    adapted = adapt(attempt)
    assert adapted.score == 0.75
    assert adapted.trajectories == adapted.returns == {}
    assert adapted.losses.counts == {}


def test_one_agent_served_by_two_policies_is_an_error():
    attempt = ScriptedAttempt()
    attempt.call("writer", [1], [2])
    attempt.call("writer", [3], [4], policy="second")
    attempt.reward(1.0)
    policies = [TRAINED, Policy(name="second", trainable=True)]
    with pytest.raises(CaptureError, match=r"writer.*second.*trained"):
        TrajectoryAdapter(["writer"], policies=policies).adapt(attempt.record())


def test_a_weight_must_be_finite():
    with pytest.raises(ConfigError, match="style"):
        TrajectoryAdapter(["a"], policies=[TRAINED], channel_weights={"style": float("nan")})


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-9, 9)), min_size=1, max_size=12))
def test_interleaved_rewards_never_swap(steps):
    """Rewards aimed at calls stay with their calls, however the agents take turns."""
    attempt = ScriptedAttempt()
    aimed = [(agent, attempt.call(agent, [1], [2]), value) for agent, value in steps]
    for _, call_id, value in reversed(aimed):
        attempt.reward(value, call=call_id)
    returns = adapt(attempt, agents=["*"]).returns
    for agent in returns:
        expected = {call_id: value for speaker, call_id, value in aimed if speaker == agent}
        assert returns[agent].calls == expected
