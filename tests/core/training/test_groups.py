import logging

import pytest
from agl_testing.attempts import TRAINED, ScriptedAttempt
from hypothesis import given
from hypothesis import strategies as st

from agl_core.adapters import TrajectoryAdapter, forest
from agl_core.config import RolloutConfig
from agl_core.errors import (
    ConfigError,
    MissingTokensError,
    RewardError,
    TrainingError,
)
from agl_core.training._batcher import Batcher
from agl_core.training.algorithms import GRPO, RLOO, GRPOOptions, RLOOOptions
from agl_core.training.groups import GroupBuilder
from agl_core.types import AttemptStatus, CallCredit, Failure, FailureKind, Policy, Sampling

DEFAULTS = dict.fromkeys(FailureKind, "drop")


def builder(*agents, max_error_share=0.0, penalty=0.0, policies=(TRAINED,), **failures):
    rollout = RolloutConfig(
        failures=DEFAULTS | {FailureKind(kind): action for kind, action in failures.items()},
        penalty=penalty,
    )
    adapter = TrajectoryAdapter(agents or ["*"], policies=policies)
    return GroupBuilder(adapter, rollout=rollout, max_error_share=max_error_share)


def attempt(name, *, reward=1.0, agents=("writer",), group="group", **fields):
    script = ScriptedAttempt(name, group=group, task=group)
    for agent in agents:
        script.call(agent, [1], [2], **fields)
    if reward is not None:
        script.reward(reward)
    return script


def failed(script, kind, status=AttemptStatus.FAILED):
    return script.record(status, failure=Failure(kind=kind, message="it broke"))


def records(*scripts):
    return [script.record() for script in scripts]


def test_attempts_of_a_task_form_a_group_per_agent():
    step = builder().build(
        records(
            attempt("3", group="g1", agents=("a", "b")),
            attempt("1", group="g2", agents=("a", "b"), reward=0.0),
            attempt("2", group="g1", agents=("a", "b"), reward=0.5),
            attempt("4", group="g2", agents=("a", "b")),
        )
    )
    assert [
        (group.group_id, group.task_id, group.agent, group.policy, [r.value for r in group.returns])
        for group in step.groups
    ] == [
        ("g2", "g2", "a", "trained", [0.0, 1.0]),
        ("g2", "g2", "b", "trained", [0.0, 1.0]),
        ("g1", "g1", "a", "trained", [0.5, 1.0]),
        ("g1", "g1", "b", "trained", [0.5, 1.0]),
    ]
    assert all(len(group.trajectories) == 2 for group in step.groups)
    assert step.losses.counts == {}
    assert step.reward == pytest.approx(0.625)
    assert step.channels == {"main": pytest.approx(0.625)}


def test_an_absent_agent_is_left_out_and_counted():
    step = builder().build(records(attempt("1", agents=("a", "b")), attempt("2", agents=("a",))))
    sizes = {group.agent: len(group.returns) for group in step.groups}
    assert sizes == {"a": 2, "b": 1}
    assert step.losses.counts == {"agents_absent": 1, "groups_of_one": 1}


@pytest.mark.parametrize("kind", list(FailureKind))
def test_a_dropped_attempt_leaves_before_the_baseline(kind):
    step = builder().build(
        [*records(attempt("1"), attempt("2", reward=0.0)), failed(attempt("3"), kind)]
    )
    (group,) = step.groups
    assert [returned.value for returned in group.returns] == [1.0, 0.0]
    assert step.failures == {kind.value: 1}
    assert step.losses.counts == {f"attempts_dropped_{kind.value}": 1}
    assert step.reward == 0.5


def test_a_retry_that_is_used_up_is_dropped():
    step = builder(engine="retry").build(
        [*records(attempt("1")), failed(attempt("2"), FailureKind.ENGINE)]
    )
    assert step.losses.counts["attempts_dropped_engine"] == 1


def test_a_penalised_attempt_has_the_penalty_as_its_only_return():
    script = attempt("2", reward=None)
    script.reward(7.0, agent="writer")
    late = failed(script, FailureKind.DEADLINE, AttemptStatus.TIMED_OUT)
    step = builder(deadline="penalize", penalty=-1.0).build([*records(attempt("1")), late])
    (group,) = step.groups
    good, bad = group.returns
    assert (good.value, good.failure) == (1.0, None)
    assert (bad.value, bad.failure, bad.channels) == (-1.0, FailureKind.DEADLINE, {})
    assert step.failures == {"deadline": 1}
    assert step.losses.counts == {"rewards_of_failed_attempts": 1}
    assert step.reward == 0.0
    assert step.channels == {"main": 1.0}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (AttemptStatus.TIMED_OUT, "deadline"),
        (AttemptStatus.CANCELLED, "cancelled"),
        (AttemptStatus.LOST, "lost"),
        (AttemptStatus.FAILED, "agent"),
    ],
)
def test_an_attempt_without_a_noted_failure_fails_by_its_status(status, kind):
    step = builder().build([*records(attempt("1")), attempt("2").record(status)])
    assert step.failures == {kind: 1}


def test_an_unusable_reward_is_a_failure_of_its_kind():
    scripts = records(attempt("1"), attempt("2", reward=float("nan")), attempt("3", reward=None))
    step = builder().build(scripts)
    assert step.failures == {"reward": 2}
    assert step.losses.counts == {"attempts_dropped_reward": 2, "groups_of_one": 1}


def test_an_unusable_reward_may_be_penalised():
    step = builder(reward="penalize", penalty=-2.0).build(
        records(attempt("1"), attempt("2", reward=None))
    )
    assert [returned.value for returned in step.groups[0].returns] == [1.0, -2.0]


def test_no_reward_at_all_is_the_rewards_error():
    with pytest.raises(RewardError, match=r"No attempt.*No reward arrived"):
        builder().build(records(attempt("1", reward=None), attempt("2", reward=None)))


def test_a_step_where_all_fail_quotes_the_first_failure():
    with pytest.raises(TrainingError, match=r"2 attempts.*'agent': 2.*it broke"):
        builder().build([failed(attempt(name), FailureKind.AGENT) for name in ("1", "2")])


def test_an_empty_step_is_an_error():
    with pytest.raises(TrainingError, match="0 attempts"):
        builder().build([])


def test_capture_errors_stop_the_step_by_default():
    scripts = [attempt("1"), attempt("2", prompt_token_ids=[])]
    with pytest.raises(MissingTokensError, match=r"1 of 2 attempts.*max_error_share.*writer"):
        builder().build(records(*scripts))


def test_capture_errors_up_to_the_share_drop_the_whole_attempt(caplog):
    scripts = [
        attempt("1", agents=("a", "b")),
        attempt("2", agents=("a", "b")),
    ]
    scripts[1].capture_error("lost its scope")
    with caplog.at_level(logging.WARNING):
        step = builder(max_error_share=0.5).build(records(*scripts))
    assert {group.agent: len(group.returns) for group in step.groups} == {"a": 1, "b": 1}
    assert step.failures == {"capture": 1}
    assert step.losses.counts["attempts_dropped_capture"] == 1
    assert "lost its scope" in caplog.text


def test_capture_errors_of_failed_attempts_count_too():
    script = attempt("2", prompt_token_ids=[])
    late = failed(script, FailureKind.DEADLINE)
    with pytest.raises(MissingTokensError, match="1 of 2"):
        builder(deadline="penalize").build([*records(attempt("1")), late])


def test_capture_errors_cannot_be_penalised():
    with pytest.raises(ConfigError, match=r"rollout.failures.capture"):
        builder(capture="penalize")


def test_an_unknown_agent_is_an_error():
    with pytest.raises(ConfigError, match=r"'wirter'.*\['writer'\]"):
        builder("wirter").build(records(attempt("1")))


def test_an_agent_seen_in_an_earlier_step_is_known():
    groups = builder("a", "b")
    groups.build(records(attempt("1", agents=("a", "b"))))
    step = groups.build(records(attempt("2", agents=("a",))))
    assert [group.agent for group in step.groups] == ["a"]


def test_an_agent_that_ran_without_a_call_is_loud():
    script = ScriptedAttempt("1")
    script.agent("writer")
    script.reward(1.0)
    with pytest.raises(TrainingError, match=r"writer.*made no call"):
        builder("writer").build(records(script))


def test_an_attempt_without_calls_is_counted():
    silent = attempt("2", agents=())
    step = builder().build(records(attempt("1"), silent))
    assert step.losses.counts["attempts_without_calls"] == 1


def test_losses_of_single_attempts_are_added_up():
    scripts = [attempt(name) for name in ("1", "2")]
    for script in scripts:
        script.call("writer", [], [], status_code=500)
    assert builder().build(records(*scripts)).losses.counts == {"calls_refused": 2}


TOO_LONG = {"status_code": 400, "error": "HTTP 400: context_length_exceeded", "complete": False}


def test_an_agent_that_took_an_overflow_for_an_answer_has_failed():
    swallowed = attempt("2", agents=("planner",))
    swallowed.call("writer", [], [], **TOO_LONG)
    step = builder().build(records(attempt("1", agents=("planner", "writer")), swallowed))
    assert step.failures == {"context_overflow": 1}
    assert step.losses.counts["attempts_dropped_context_overflow"] == 1
    assert step.losses.counts["calls_overflowed"] == 1
    assert [len(group.returns) for group in step.groups] == [1, 1]


def test_its_penalty_reaches_the_agents_that_did_speak():
    swallowed = attempt("2", agents=("planner",))
    swallowed.call("writer", [], [], **TOO_LONG)
    step = builder(context_overflow="penalize", penalty=-1.0).build(
        records(attempt("1", agents=("planner", "writer")), swallowed)
    )
    planners = next(group for group in step.groups if group.agent == "planner")
    assert [returned.value for returned in planners.returns] == [1.0, -1.0]
    assert planners.returns[1].failure is FailureKind.CONTEXT_OVERFLOW
    assert step.losses.counts["calls_overflowed"] == 1


def test_an_overflow_that_no_exception_tells_of_is_told_by_the_last_call():
    script = attempt("2")
    script.call("writer", [], [], **TOO_LONG)
    step = builder().build([*records(attempt("1")), failed(script, FailureKind.AGENT)])
    assert step.failures == {"context_overflow": 1}
    script.call("writer", [3], [4])
    step = builder().build([*records(attempt("1")), failed(script, FailureKind.AGENT)])
    assert step.failures == {"agent": 1}


def batches(step, algorithm=None, **kwargs):
    return Batcher(algorithm or GRPO(GRPOOptions()), forest).build(step.groups, step=4, **kwargs)


def test_one_batch_per_policy_with_groups_told_apart():
    policies = (TRAINED, Policy(name="other", trainable=True))
    scripts = []
    for name, group in [("1", "g1"), ("2", "g1"), ("3", "g2"), ("4", "g2")]:
        script = attempt(name, group=group, reward=float(name in "13"))
        script.call("planner", [5], [6], policy="other")
        scripts.append(script)
    built, losses = batches(builder(policies=policies).build(records(*scripts)))
    assert [(batch.policy, batch.step, list(batch.groups)) for batch in built] == [
        ("other", 4, [0, 0, 1, 1]),
        ("trained", 4, [0, 0, 1, 1]),
    ]
    assert losses.counts == {}


def test_groups_without_a_signal_are_kept_and_counted():
    scripts = [
        attempt("1", group="g1"),
        attempt("2", group="g1"),
        attempt("3", group="g2"),
        attempt("4", group="g2", reward=0.0),
    ]
    (batch,), losses = batches(builder().build(records(*scripts)))
    assert losses.counts == {"groups_without_signal": 1}
    assert len(batch.call_ids) == 4
    assert list(batch.advantages)[:2] == [0.0, 0.0]


class Fixed:
    loss = "policy_gradient"

    def __init__(self, *credits_):
        self.loss_options = {}
        self.credits = list(credits_)

    def credit(self, group):
        return self.credits


def fixed(step, *, call=None, advantage=1.0, weight=1.0):
    call = call or step.groups[0].trajectories[0][0].calls[0].call_id
    return CallCredit(call_id=call, choice=0, advantages=[advantage], weights=[weight])


@pytest.mark.parametrize(
    "spoilt",
    [{"advantage": float("nan")}, {"weight": -1.0}, {"weight": float("inf")}],
)
def test_a_number_that_cannot_be_trained_on_is_an_error(spoilt):
    step = builder().build(records(attempt("1")))
    with pytest.raises(TrainingError, match="call_at_1"):
        batches(step, Fixed(fixed(step, **spoilt)))


def test_a_credit_for_a_call_outside_the_group_is_an_error():
    step = builder().build(records(attempt("1")))
    with pytest.raises(TrainingError, match="'c9'"):
        batches(step, Fixed(fixed(step, call="c9")))
    with pytest.raises(TrainingError, match="credited already"):
        batches(step, Fixed(fixed(step), fixed(step)))


def test_a_policy_without_weight_gets_no_batch():
    step = builder().build(records(attempt("1")))
    built, losses = batches(step, Fixed(fixed(step, weight=0.0)))
    assert built == []
    assert losses.counts["policies_without_weight"] == 1


def test_an_attempt_without_a_channel_of_its_siblings_is_left_out():
    """C6: 0 on that channel was not given, so it is neither in the baseline nor in the loss."""
    scripts = [attempt(name) for name in ("1", "2", "3")]
    for script in scripts[:2]:
        script.reward(-1.0, channel="style")
    step = builder().build(records(*scripts))
    (group,) = step.groups
    assert [returned.value for returned in group.returns] == [0.0, 0.0]
    assert step.losses.counts == {"rewards_missing_on_channel_style": 1}
    (batch,), _ = Batcher(GRPO(GRPOOptions()), forest).build(step.groups, step=0)
    assert len(batch.call_ids) == 2


def test_a_channel_that_no_attempt_of_a_group_has_is_not_missing():
    """C6: another task's group may be rewarded otherwise."""
    scripts = [attempt("1", group="g1"), attempt("2", group="g1"), attempt("3", group="g2")]
    scripts[2].reward(1.0, channel="style")
    step = builder().build(records(*scripts))
    assert [len(group.returns) for group in step.groups] == [2, 1]
    assert step.losses.counts == {"groups_of_one": 1}


def test_an_attempt_whose_agent_no_reward_reached_is_left_out():
    """C6: of two agents one is rewarded in all attempts, the other in two of three."""
    scripts = [attempt(name, agents=("a", "b"), reward=None) for name in ("1", "2", "3")]
    for value, script in enumerate(scripts):
        script.reward(float(value), agent="a")
        if value:
            script.reward(-float(value), agent="b")
    step = builder().build(records(*scripts))
    assert {group.agent: [each.value for each in group.returns] for group in step.groups} == {
        "a": [0.0, 1.0, 2.0],
        "b": [-1.0, -2.0],
    }
    assert step.losses.counts == {"agents_without_reward": 1}


def test_a_step_whose_trained_agents_no_reward_reached_is_an_error():
    """C6: the error says what is missing."""
    scripts = [attempt(name, reward=None) for name in ("1", "2")]
    for script in scripts:
        script.call("judge", [], [], trainable=False, policy="frozen")
        script.reward(1.0, agent="judge")
    with pytest.raises(TrainingError, match="No reward reached the agents to train"):
        builder("writer").build(records(*scripts))


def test_a_penalty_lacks_no_channel():
    """C6: what the failure policy gives is a return of its own."""
    scripts = [attempt("1"), attempt("2")]
    for script in scripts:
        script.reward(1.0, channel="style")
    late = failed(attempt("3", reward=None), FailureKind.DEADLINE, AttemptStatus.TIMED_OUT)
    step = builder(deadline="penalize", penalty=-1.0).build([*records(*scripts), late])
    assert [each.value for each in step.groups[0].returns] == [2.0, 2.0, -1.0]


def unused(name, reward):
    """An attempt of two choices, neither of which was continued or named by a reward."""
    script = ScriptedAttempt(name, group="group", task="group")
    script.call("writer", [1], [2], [3])
    script.reward(reward)
    return script


def test_an_attempt_that_is_not_trained_takes_no_part_in_the_baseline():
    """C7: all weights of an n=2 call that nothing continued are 0."""
    scripts = [attempt("1", reward=1.0), attempt("2", reward=0.0), unused("3", 100.0)]
    step = builder().build(records(*scripts))
    (group,) = step.groups
    assert [returned.value for returned in group.returns] == [1.0, 0.0]
    assert step.losses.counts == {"choices_without_reward": 2, "agents_without_trained_choice": 1}


def test_an_attempt_trained_by_a_named_choice_alone_takes_no_part_in_the_baseline():
    """C7: no token of it is trained with its return."""
    scripts = [attempt("1", reward=1.0), attempt("2", reward=0.0), unused("3", 100.0)]
    scripts[2].reward(1.0, call=scripts[2].spans[0].call_id, choice=1)
    step = builder().build(records(*scripts))
    (batch,), _ = Batcher(GRPO(GRPOOptions(scale=False)), forest).build(step.groups, step=0)
    assert dict(zip(batch.call_ids, batch.advantages, strict=True)) == {
        "call_at_1_0": 0.5,
        "call_at_2_0": -0.5,
        "call_at_3_0": 0.0,
    }


@given(
    rewards=st.lists(
        st.tuples(st.floats(-100, 100), st.sampled_from(["used", "unused", "named"])),
        min_size=1,
        max_size=7,
    ),
    shift=st.floats(-100, 100),
    estimator=st.sampled_from([GRPO(GRPOOptions()), RLOO(RLOOOptions())]),
)
def test_returns_without_a_trained_token_change_no_advantage(rewards, shift, estimator):
    """C7: as a property, over groups in which attempts are trained, unused, or trained by name."""

    def advantages(moved):
        scripts = []
        for index, (value, kind) in enumerate(rewards):
            if kind == "used":
                scripts.append(attempt(str(index), reward=value))
                continue
            scripts.append(unused(str(index), value + moved))
            if kind == "named":
                scripts[-1].reward(1.0, call=scripts[-1].spans[0].call_id, choice=0)
        try:
            step = builder().build(records(*scripts))
        except TrainingError:
            return {}
        credits_ = [credit for group in step.groups for credit in estimator.credit(group)]
        return {(each.call_id, each.choice): each.advantages for each in credits_}

    assert advantages(0.0) == advantages(shift)


def test_an_empty_answer_loses_its_attempt_alone():
    """C8: with the strictest capture.max_error_share, and counted as its own cause."""
    empty = ScriptedAttempt("3", group="group", task="group")
    empty.call("writer", [1], [])
    empty.reward(1.0)
    step = builder().build(records(attempt("1"), attempt("2", reward=0.0), empty))
    assert [returned.value for returned in step.groups[0].returns] == [1.0, 0.0]
    assert step.failures == {"empty_answer": 1}
    assert step.losses.counts == {"attempts_dropped_empty_answer": 1}


def test_a_step_of_empty_answers_is_an_error_that_says_so():
    """C8: nothing is left to train on."""
    empty = ScriptedAttempt("1")
    empty.call("writer", [1], [])
    empty.reward(1.0)
    with pytest.raises(TrainingError, match=r"empty_answer.*before the first token"):
        builder().build(records(empty))


def test_a_step_of_constrained_calls_names_the_option():
    """C11: nothing is left to train on."""
    fields = {"sampling": Sampling(extra={"response_format": {"type": "json_object"}})}
    with pytest.raises(TrainingError, match=r"calls_constrained.*train_constrained = true"):
        builder().build(records(attempt("1", **fields), attempt("2", **fields)))
