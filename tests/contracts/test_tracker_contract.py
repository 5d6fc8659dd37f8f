"""Each rule of TrackerContract fails on a tracker that breaks it."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import pytest
from agl_testing.tracker_contract import Kept, TrackerContract
from agl_tracking import (
    SentLog,
    evaluation_numbers,
    flat_config,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)

SERVICE = {}
"""Id of a run to what a service holds of it."""
IDS = itertools.count()


class Keeping:
    """A sound tracker of a service in memory."""

    def start(self, run):
        self.run, self.at = run, run.resumed_at or 0
        self.sent = self.opened(run)
        SERVICE.setdefault(self.sent.run, {"numbers": [], "facts": {}})
        SERVICE[self.sent.run]["settings"] = self.settings(run)

    def opened(self, run):
        log = SentLog.open(run, "keeping")
        return log or SentLog.create(run, "keeping", str(next(IDS)))

    def settings(self, run):
        return flat_config(run.config)

    def named(self, numbers):
        return numbers

    def takes(self, kind, report):
        return (
            self.sent.takes_step(report.step)
            if kind == "step"
            else self.sent.takes_evaluation(report)
        )

    def step(self, report):
        self.at = report.step
        if self.takes("step", report):
            self.keep(step_numbers(report), report.step)

    def evaluation(self, evaluation):
        if self.takes("evaluation", evaluation):
            self.keep(evaluation_numbers(evaluation), evaluation.step)

    def finish(self, outcome):
        self.keep(outcome_numbers(outcome), self.at)
        SERVICE[self.sent.run]["facts"] = outcome_facts(outcome)

    def keep(self, numbers, step):
        numbers = self.named(numbers)
        SERVICE[self.sent.run]["numbers"] += [(name, step, numbers[name]) for name in numbers]


def read(run):
    held = SERVICE[max(SERVICE, key=int)]
    numbers = defaultdict(lambda: defaultdict(list))
    for name, step, value in held["numbers"]:
        numbers[name][step].append(value)
    return Kept(numbers=numbers, settings=held["settings"], facts=held["facts"], runs=len(SERVICE))


class RenamesNumbers(Keeping):
    def named(self, numbers):
        return {name.replace("reward", "return"): value for name, value in numbers.items()}


class ForgetsIntervals(Keeping):
    def named(self, numbers):
        return {name: value for name, value in numbers.items() if not name.endswith("_low")}


class ForgetsSettings(Keeping):
    def settings(self, run):
        return {}


class ForgetsTheEnd(Keeping):
    def finish(self, outcome):
        pass


class ForgetsFailures(Keeping):
    def finish(self, outcome):
        if not isinstance(outcome, BaseException):
            super().finish(outcome)


class ForgetsTexts(Keeping):
    def finish(self, outcome):
        super().finish(outcome)
        SERVICE[self.sent.run]["facts"] = {}


class NeedsASample(Keeping):
    def finish(self, outcome):
        assert self.at, "no step was taken"
        super().finish(outcome)


class BeginsAnew(Keeping):
    def opened(self, run):
        return SentLog.create(run, "keeping", str(next(IDS)))


class SendsTwice(Keeping):
    def takes(self, kind, report):
        return True


class TakesEvaluationsForSteps(Keeping):
    def takes(self, kind, report):
        fresh = report.step > self.sent._sent.step
        return (kind == "step" and self.sent.takes_step(report.step)) or fresh


class TakesOneEvaluationPerStep(Keeping):
    def takes(self, kind, report):
        fresh = report.step > self.sent._sent.evaluation  # before it is marked as sent
        return super().takes(kind, report) and (kind == "step" or fresh)


class GoesOnUnasked(Keeping):
    def opened(self, run):
        return super().opened(replace(run, resumed_at=0))


class CountsFromTheStart(Keeping):
    def step(self, report):
        assert report.step == self.at + 1
        super().step(report)

    def start(self, run):
        super().start(run)
        self.at = 0


class MixesAgents(Keeping):
    def named(self, numbers):
        return {name.replace("@", "").replace(":", ";"): numbers[name] for name in numbers}


class StumblesOverNan(Keeping):
    def keep(self, numbers, step):
        assert all(map(math.isfinite, numbers.values()))
        super().keep(numbers, step)


class OnePerProcess(Keeping):
    def start(self, run):
        assert not SERVICE, "a run is active already"
        super().start(run)


BROKEN = {
    "test_a_steps_numbers_arrive_under_their_names": RenamesNumbers,
    "test_an_evaluations_numbers_arrive_under_their_names": ForgetsIntervals,
    "test_evaluations_after_prompt_phases_arrive_although_their_step_is_the_same": (
        TakesOneEvaluationPerStep
    ),
    "test_the_configuration_arrives": ForgetsSettings,
    "test_the_report_arrives": ForgetsTheEnd,
    "test_the_weights_and_prompts_arrive": ForgetsTexts,
    "test_a_failure_arrives": ForgetsFailures,
    "test_why_a_run_failed_arrives": ForgetsTexts,
    "test_a_run_that_fails_at_once_is_reported": NeedsASample,
    "test_a_resumed_run_has_one_value_for_each_step": SendsTwice,
    "test_an_evaluation_that_a_crash_forestalled_arrives_after_it": TakesEvaluationsForSteps,
    "test_a_restarted_run_has_nothing_of_the_try_before": GoesOnUnasked,
    "test_a_tracker_that_is_added_to_a_run_begins_with_its_next_step": CountsFromTheStart,
    "test_agents_of_any_name_are_distinguished": MixesAgents,
    "test_a_number_that_is_none_costs_the_others_nothing": StumblesOverNan,
    "test_one_process_tracks_several_runs": OnePerProcess,
}
RULES = [name for name in vars(TrackerContract) if name.startswith("test_")]


@pytest.fixture(autouse=True)
def service():
    SERVICE.clear()
    yield
    SERVICE.clear()


class TestKeeping(TrackerContract):
    @pytest.fixture
    def make(self):
        return Keeping

    @pytest.fixture
    def read(self):
        return read


def test_every_rule_has_a_tracker_that_breaks_it():
    assert set(BROKEN) == set(RULES)


def broken(rule, make, tmp_path):
    suite = TrackerContract()
    given = {
        "make": make,
        "read": read,
        "named": str,
        "kill": lambda tracker: None,
        "tracked": TrackerContract.tracked.__wrapped__(suite, tmp_path),
    }
    test = getattr(suite, rule)
    names = test.__code__.co_varnames[1 : test.__code__.co_argcount]
    test(**{name: given[name] for name in names})


@pytest.mark.parametrize("rule", RULES)
def test_a_tracker_that_breaks_the_rule_is_caught(rule, tmp_path):
    with pytest.raises((AssertionError, KeyError)):
        broken(rule, BROKEN[rule], tmp_path)


def test_another_run_at_the_service_is_caught(tmp_path):
    with pytest.raises(AssertionError, match="another run"):
        broken("test_a_resumed_run_has_one_value_for_each_step", BeginsAnew, tmp_path)
