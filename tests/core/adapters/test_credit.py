import math

import pytest
from agl_testing.attempts import FROZEN, TRAINED, CallOptions, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter, forest
from agl_core.errors import CaptureError, ConfigError, RewardError
from agl_core.training._batcher import Batcher
from agl_core.training.algorithms import GRPO, RLOO, GRPOOptions, RLOOOptions
from agl_core.training.evaluate import estimate
from agl_core.training.groups import group_attempts
from agl_core.types import AttemptStatus, Losses, Policy


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
    with pytest.raises(RewardError, match="name one of call"):
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
    with pytest.raises(RewardError, match=r"\[0, 1\] and none of them was continued.*choice="):
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


def shared_run():
    attempt = ScriptedAttempt()
    attempt.call("planner", [1], [2], options=CallOptions(run="conversation"))
    attempt.call("writer", [3], [4], options=CallOptions(run="conversation"))
    return attempt


def test_a_run_is_an_agent_and_an_id():
    """C5: two agents that send one run id, as a conversation's, have a run each."""
    attempt = shared_run()
    attempt.reward(1.0, agent="planner", agent_run="conversation")
    attempt.reward(0.25, agent="writer", agent_run="conversation")
    returns = adapt(attempt, agents=["*"]).returns
    assert returns["planner"].runs == {"conversation": 1.0}
    assert returns["writer"].runs == {"conversation": 0.25}


def test_a_reward_for_the_run_of_an_agent_that_is_not_trained_is_counted():
    """C5: of the two agents with that run id only the writer is trained."""
    attempt = shared_run()
    attempt.reward(1.0)
    attempt.reward(1.0, agent="planner", agent_run="conversation")
    adapted = adapt(attempt)
    assert adapted.losses.counts == {"rewards_untrained": 1}
    assert adapted.returns["writer"].runs == {}


def test_a_run_id_of_several_agents_needs_the_agent():
    """C5: a reward that could mean either run reaches neither."""
    attempt = shared_run()
    attempt.reward(1.0, agent_run="conversation")
    with pytest.raises(RewardError, match=r"\['planner', 'writer'\] share.*agent="):
        adapt(attempt)


def test_an_agent_that_never_had_the_run_is_an_error():
    """C5: the run exists, but is another agent's."""
    attempt = ScriptedAttempt()
    attempt.call("planner", [1], [2], options=CallOptions(run="r1"))
    attempt.call("writer", [3], [4], options=CallOptions(run="r2"))
    attempt.reward(1.0, agent="writer", agent_run="r1")
    with pytest.raises(RewardError, match=r"run of 'writer' 'r1'.*never had.*r2"):
        adapt(attempt)


def test_an_agent_that_no_reward_reached_has_no_return():
    """C6: which is not a return of 0."""
    attempt = ScriptedAttempt()
    attempt.call("a", [1], [2])
    attempt.call("b", [1], [2])
    attempt.reward(1.0, agent="a")
    adapted = adapt(attempt, agents=["*"])
    assert [adapted.returns[agent].unrewarded for agent in "ab"] == [False, True]
    assert adapted.losses.counts == {"agents_without_reward": 1}


def test_a_return_says_which_channels_were_given():
    """C6: a channel of weight 0 does not count, nor do rewards of single calls."""
    attempt, call_id = one_call()
    attempt.reward(1.0, channel="style", agent="writer")
    attempt.reward(1.0, channel="main")
    attempt.reward(1.0, channel="ignored")
    attempt.reward(1.0, channel="turn", call=call_id)
    assert adapt(attempt, weights={"ignored": 0}).returns["writer"].given == ("main", "style")


@pytest.mark.parametrize("values", [[1e308, 1e308], [1e308, -1e308], [1e31], [6e29, 6e29]])
def test_rewards_that_training_cannot_hold_are_an_error(values):
    """A5: no sum of rewards is infinite."""
    attempt, _ = one_call()
    for value in values:
        attempt.reward(value)
    with pytest.raises(RewardError, match="32-bit floats"):
        adapt(attempt)


@given(
    attempts=st.lists(
        st.lists(
            st.tuples(st.floats(allow_nan=False), st.sampled_from(["attempt", "agent", "call"])),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    ),
    weight=st.floats(allow_nan=False, allow_infinity=False),
)
def test_every_sum_of_rewards_is_finite_or_an_error(attempts, weight):
    """A5: returns, baselines and advantages stay finite, whatever finite rewards are given."""
    adapted = []
    for index, rewards in enumerate(attempts):
        attempt = ScriptedAttempt(str(index))
        call_id = attempt.call("writer", [1], [2])
        targets = {"attempt": {}, "agent": {"agent": "writer"}, "call": {"call": call_id}}
        for value, target in rewards:
            attempt.reward(value, channel="weighted", **targets[target])
        try:
            adapted.append(adapt(attempt, weights={"weighted": weight}))
        except RewardError:
            continue
    for group in group_attempts(adapted, Losses()):
        for algorithm in (GRPO(GRPOOptions()), GRPO(GRPOOptions(scale=False)), RLOO(RLOOOptions())):
            (batch,), _ = Batcher(algorithm, forest).build([group], step=0)
            assert all(map(math.isfinite, batch.advantages))
    scores = [each.score for each in adapted]
    assert all(map(math.isfinite, scores))
    if scores:
        assert math.isfinite(estimate(scores).high)
