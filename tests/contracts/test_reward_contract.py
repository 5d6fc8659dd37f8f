"""Each rule of RewardContract fails on a reward that breaks it."""

import random
from itertools import count

import pytest
from agl_testing.attempts import CallOptions, ScriptedAttempt
from agl_testing.reward_contract import RewardContract

from agl_core.errors import RewardError
from agl_core.types import Reward, RewardTarget, Score


def sound(task, output, attempt):
    return {"main": float(len(output)), "calls": float(len(attempt.spans))}


def records():
    return [make_record("1", "seven"), make_record("2", "it is seven")]


def make_record(name, output):
    script = ScriptedAttempt(name)
    script.call("writer", [1, 2], [3], options=CallOptions(run="run"))
    return script.record(output=output)


def aimed(**target):
    def reward(task, output, attempt):
        return Reward(value=float(len(output)), target=RewardTarget(**target))

    return reward


def aimed_at_its_call(**target):
    def reward(task, output, attempt):
        call_id = attempt.spans[0].call_id
        return Reward(value=float(len(output)), target=RewardTarget(call=call_id, **target))

    return reward


def gives_no_number(task, output, attempt):
    return float("nan")


def gives_nothing(task, output, attempt):
    return {}


def rolls(task, output, attempt):
    return random.random()


def gives_all_the_same(task, output, attempt):
    return 1.0


def clears_the_spans(task, output, attempt):
    attempt.spans.clear()
    return 1.0


def marks_the_task(task, output, attempt):
    task.metadata["scored"] = True
    return 1.0


def writes_a_book(task, output, attempt):
    return Score(len(output), "x" * 20_000)


class CountsItsCalls:
    def __init__(self):
        self.calls = count()

    def __call__(self, task, output, attempt):
        return float(next(self.calls))


_CASES = [
    ("it_scores_every_record_with_finite_numbers", gives_no_number, RewardError),
    ("it_scores_every_record_with_finite_numbers", gives_nothing, RewardError),
    ("its_reasons_are_short_enough_to_be_stored_whole", writes_a_book, AssertionError),
    ("it_is_deterministic", rolls, AssertionError),
    ("it_is_deterministic", CountsItsCalls(), AssertionError),
    ("it_distinguishes_records", gives_all_the_same, AssertionError),
    ("it_aims_at_what_the_attempt_holds", aimed(agent="nobody"), AssertionError),
    ("it_aims_at_what_the_attempt_holds", aimed(agent_run="none"), AssertionError),
    ("it_aims_at_what_the_attempt_holds", aimed(call="none"), AssertionError),
    ("it_aims_at_what_the_attempt_holds", aimed_at_its_call(choice=1), AssertionError),
    ("it_leaves_task_output_and_spans_alone", clears_the_spans, AssertionError),
    ("it_leaves_task_output_and_spans_alone", marks_the_task, AssertionError),
]


@pytest.mark.parametrize(("rule", "broken", "caught_by"), _CASES)
async def test_a_broken_reward_is_caught(rule, broken, caught_by):
    test = getattr(RewardContract(), f"test_{rule}")
    await test(sound, records())
    with pytest.raises(caught_by):
        await test(broken, records())


@pytest.mark.parametrize(
    "reward",
    [
        aimed(agent="writer"),
        aimed(agent_run="run"),
        aimed_at_its_call(),
        aimed_at_its_call(choice=0),
    ],
)
async def test_a_target_of_the_attempt_is_accepted(reward):
    await RewardContract().test_it_aims_at_what_the_attempt_holds(reward, records())


def test_every_rule_has_its_broken_reward():
    rules = {name[5:] for name in vars(RewardContract) if name.startswith("test_")}
    assert rules == {rule for rule, _, _ in _CASES}
