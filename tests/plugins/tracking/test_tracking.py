"""The names of a run's numbers, and what a service was sent before a crash."""

import math

import msgspec
import pytest
from agl_tracking import (
    SentLog,
    evaluation_numbers,
    flat_config,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)

from agl_core.interfaces import TrackedRun
from agl_core.types import Estimate, Evaluation, Report, StepReport
from agl_core.types.run import RewardTrend, RowCounts

STEP = StepReport(
    step=3,
    steps=9,
    reward=0.5,
    channels={"main": 0.25},
    rollouts=8,
    calls=16,
    tokens=99,
    failures={"agent": 1},
    lost={"late": 2},
    breaks={"writer": {"edited": 3}},
    rows={"writer": 4},
    metrics={"loss": math.nan, "writer/kl": 0.1},
    wall_s=1.5,
)


def estimate(mean):
    return Estimate(mean=mean, low=mean - 0.1, high=mean + 0.1, n=10)


def test_a_steps_numbers_have_the_documented_names():
    numbers = step_numbers(STEP)
    assert math.isnan(numbers.pop("metrics/loss"))
    assert numbers == {
        "reward": 0.5,
        "reward/main": 0.25,
        "rollouts": 8,
        "calls": 16,
        "tokens": 99,
        "wall_s": 1.5,
        "failures/agent": 1,
        "lost/late": 2,
        "breaks/writer/edited": 3,
        "rows/writer": 4,
        "metrics/writer/kl": 0.1,
    }


def test_a_step_without_rollouts_has_no_reward():
    numbers = step_numbers(msgspec.structs.replace(STEP, reward=None))
    assert "reward" not in numbers
    assert numbers["tokens"] == 99


def test_every_field_of_a_step_is_among_its_numbers():
    told = {name.partition("/")[0] for name in step_numbers(STEP)}
    fields = set(StepReport.__struct_fields__) - {"step", "steps", "channels"}
    assert told == fields


def test_an_evaluations_numbers_have_the_ends_of_their_intervals():
    evaluation = Evaluation(
        step=3,
        score=estimate(0.5),
        channels={"main": estimate(0.25)},
        pass_at_k={4: estimate(0.75)},
        failed={"deadline": 2},
        wall_s=7.0,
    )
    assert evaluation_numbers(evaluation) == {
        "eval/score": 0.5,
        "eval/score_low": 0.4,
        "eval/score_high": 0.6,
        "eval/channel/main": 0.25,
        "eval/channel/main_low": 0.15,
        "eval/channel/main_high": 0.35,
        "eval/pass_at_4": 0.75,
        "eval/pass_at_4_low": 0.65,
        "eval/pass_at_4_high": 0.85,
        "eval/tasks": 10,
        "eval/failed/deadline": 2,
        "eval/wall_s": 7.0,
    }


def test_a_reports_numbers_and_facts():
    report = Report(
        run_id="run",
        directory="runs/run",
        steps=[STEP],
        policies={
            "trained": {"version": 3, "path": "p", "sha256_before": "a", "sha256_after": "b"}
        },
        lost={"late": 2},
        breaks={"writer": {"edited": 3}},
        calls=16,
        reward=RewardTrend(first=0.1, last=0.5),
        rows=RowCounts(by_agent={"writer": 4}),
        seconds_per_step=1.5,
        wall_s=2.0,
        best="runs/run/checkpoints/step-000003",
    )
    assert outcome_numbers(report) == {
        "final/failed": 0,
        "final/steps": 1,
        "final/calls": 16,
        "final/wall_s": 2.0,
        "final/seconds_per_step": 1.5,
        "final/reward_first": 0.1,
        "final/reward_last": 0.5,
        "final/lost/late": 2,
        "final/breaks/writer/edited": 3,
        "final/rows/writer": 4,
    }
    assert outcome_facts(report) == {
        "final/best": "runs/run/checkpoints/step-000003",
        "final/policy/trained/version": "3",
        "final/policy/trained/path": "p",
        "final/policy/trained/sha256_before": "a",
        "final/policy/trained/sha256_after": "b",
    }


def test_a_failure_is_told():
    error = OSError("disk full")
    assert outcome_numbers(error) == {"final/failed": 1.0}
    assert outcome_facts(error) == {"final/failure": "OSError: disk full"}


def test_a_configuration_is_flat_text():
    config = {"a": {"b": 1, "c": None}, "rewards": [{"name": "x"}], "agents": ["w"], "empty": {}}
    assert flat_config(config) == {
        "a.b": "1",
        "a.c": "null",
        "rewards.0.name": "x",
        "agents": '["w"]',
        "empty": "{}",
    }


def evaluation_of(step, phase=None):
    score = Estimate(mean=0.5, low=0.25, high=0.75, n=8)
    return Evaluation(step=step, phase=phase, score=score, wall_s=1.0)


def run_in(directory, resumed_at=None):
    return TrackedRun(name="run", directory=directory, config={}, resumed_at=resumed_at)


def test_what_was_sent_is_not_sent_again(tmp_path, caplog):
    first = SentLog.create(run_in(tmp_path), "mine", "abc")
    assert first.takes_evaluation(evaluation_of(0))
    assert all(first.takes_step(step) for step in (1, 2, 3))
    resumed = SentLog.open(run_in(tmp_path, 2), "mine")
    assert resumed.run == "abc"
    assert [resumed.takes_step(step) for step in (3, 4)] == [False, True]
    assert [resumed.takes_evaluation(evaluation_of(step)) for step in (0, 4)] == [False, True]
    assert "sent steps up to 3" in caplog.text


def test_each_phase_of_prompts_has_an_evaluation(tmp_path):
    first = SentLog.create(run_in(tmp_path), "mine", "abc")
    order = [(0, None), (0, 0), (0, 1), (4, None), (4, 3)]
    assert all(first.takes_evaluation(evaluation_of(*each)) for each in order)
    resumed = SentLog.open(run_in(tmp_path, 4), "mine")
    again = [(4, None), (4, 3), (4, 4), (9, None)]
    taken = [resumed.takes_evaluation(evaluation_of(*each)) for each in again]
    assert taken == [False, False, True, True]


def test_nothing_is_said_where_nothing_is_repeated(tmp_path, caplog):
    SentLog.create(run_in(tmp_path), "mine", "abc").takes_step(2)
    assert SentLog.open(run_in(tmp_path, 2), "mine")
    assert caplog.text == ""


@pytest.mark.parametrize("resumed_at", [None, 2])
def test_a_run_that_begins_and_one_without_records_have_none(tmp_path, resumed_at):
    if resumed_at is None:
        SentLog.create(run_in(tmp_path), "mine", "abc")
    assert SentLog.open(run_in(tmp_path, resumed_at), "mine") is None
