"""The contract of experiment trackers, checked by reading the data back from the service.

::

    class TestMine(TrackerContract):
        @pytest.fixture
        def make(self): return lambda: Mine(MineOptions())

        @pytest.fixture
        def read(self): return read_mine        # by the service's own reader
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agl_tracking import (
    evaluation_numbers,
    flat_config,
    outcome_facts,
    outcome_numbers,
    step_numbers,
)

from agl_core.interfaces import TrackedRun, Tracker
from agl_core.types import Estimate, Evaluation, PromptReport, Report, StepReport
from agl_testing._guard import ContractSuite

__all__ = ["Kept", "TrackerContract"]

_AGENTS = ("writer", "@selector", "team/second writer", "Schreiber ü", "a:b", "a;b", "a//b", "c/.")
"""Agent names with special characters: programs choose the names freely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run as the tracker's service stores it."""

    numbers: Mapping[str, Mapping[int, Sequence[float]]]
    """Every stored value by name and step."""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    """The configuration, as `flat_config` returns it."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts by name."""
    runs: int = 1
    """Number of runs in the service after all tracking."""


_killed = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""A killed process closes nothing."""

Make = Callable[[], Tracker]
ReadRun = Callable[[TrackedRun], Kept]
ShownName = Callable[[str], str]
Kill = Callable[[Any], None]


class TrackerContract(ContractSuite):
    """Contract suite of trackers: supply `make` and `read`, and `named` if names change."""

    @pytest.fixture
    def make(self) -> Make:
        """Return a factory of trackers, which all write to the same place."""
        raise NotImplementedError("Supply the fixture make")

    @pytest.fixture
    def read(self) -> ReadRun:
        """Return a function that reads the last tracked run from the service."""
        raise NotImplementedError("Supply the fixture read")

    @pytest.fixture
    def named(self) -> ShownName:
        """Return a function from a number's name to its name in the service."""
        return str

    @pytest.fixture
    def kill(self) -> Kill:
        """Return a function that simulates the end of the tracker's process; default: nothing."""
        return lambda _: None

    @pytest.fixture
    def tracked(self, tmp_path: Path) -> TrackedRun:
        """Return a run that begins."""
        directory = tmp_path / "runs" / "contract"
        directory.mkdir(parents=True)
        config = {
            "name": "contract",
            "agents": ["writer"],
            "algorithm": {"name": "grpo", "lr": 1e-06},
            "rewards": [{"name": "numeric", "channel": "main"}],
            "prompts": {"writer": "ü" * 7000},
            "model": None,
        }
        return TrackedRun(name="contract", directory=directory, config=config)

    def test_a_steps_numbers_arrive_under_their_names(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        steps = [_step(1, reward=0.25), _step(2, reward=0.5)]
        _track(make(), tracked, steps)
        kept = read(tracked)
        for report in steps:
            _check(kept, step_numbers(report), report.step, named)

    def test_an_evaluations_numbers_arrive_under_their_names(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        evaluations = [_evaluation(0, 0.25), _evaluation(1, 0.75)]
        _track(make(), tracked, [evaluations[0], _step(1), evaluations[1]])
        kept = read(tracked)
        for evaluation in evaluations:
            _check(kept, evaluation_numbers(evaluation), evaluation.step, named)

    def test_evaluations_after_prompt_phases_arrive_although_their_step_is_the_same(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        scores = [
            _evaluation(0, 0.25),
            msgspec.structs.replace(_evaluation(0, 0.5), phase=0),
            msgspec.structs.replace(_evaluation(0, 0.75), phase=1),
        ]
        _track(make(), tracked, [*scores, _step(1)])
        assert sorted(read(tracked).numbers[named("eval/score")][0]) == [0.25, 0.5, 0.75]

    def test_the_configuration_arrives(
        self, make: Make, read: ReadRun, tracked: TrackedRun
    ) -> None:
        _track(make(), tracked, [_step(1)])
        settings = read(tracked).settings
        for key, value in flat_config(tracked.config).items():
            assert key in settings, f"the setting {key} did not arrive"
            same = settings[key] == value or (len(settings[key]) >= 500 and settings[key] in value)
            assert same, f"{key} is {settings[key]!r} there, but {value!r}"

    def test_the_report_arrives(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        report = _report(tracked, [_step(1), _step(2)])
        _track(make(), tracked, report.steps, report)
        _check(read(tracked), outcome_numbers(report), 2, named)

    def test_the_weights_and_prompts_arrive(
        self, make: Make, read: ReadRun, tracked: TrackedRun
    ) -> None:
        report = _report(tracked, [_step(1), _step(2)])
        _track(make(), tracked, report.steps, report)
        _check_facts(read(tracked), outcome_facts(report))

    def test_a_failure_arrives(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        error = OSError("the disk is full")
        _track(make(), tracked, [_step(1)], error)
        _check(read(tracked), outcome_numbers(error), 1, named)

    def test_why_a_run_failed_arrives(self, make: Make, read: ReadRun, tracked: TrackedRun) -> None:
        error = OSError("the disk is full")
        _track(make(), tracked, [_step(1)], error)
        _check_facts(read(tracked), outcome_facts(error))

    def test_a_run_that_fails_at_once_is_reported(
        self, make: Make, read: ReadRun, tracked: TrackedRun
    ) -> None:
        _track(make(), tracked, [], OSError("no weights"))
        assert read(tracked).runs == 1

    @_killed
    def test_a_resumed_run_has_one_value_for_each_step(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun, kill: Kill
    ) -> None:
        """Kill a run after step 3, whose checkpoint was not written, and resume it."""
        first = [_evaluation(0, 0.1), _step(1), _step(2), _step(3)]
        _track(make(), tracked, first, kill)
        again = [_step(3, reward=0.75), _step(4), _evaluation(4, 0.9)]
        _track(make(), replace(tracked, resumed_at=2), again)
        kept = read(tracked)
        assert kept.runs == 1, "the resumed run is another run there"
        rewards = kept.numbers[named("reward")]
        assert sorted(rewards) == [1, 2, 3, 4]
        assert {step: len(values) for step, values in rewards.items() if len(values) > 1} == {}
        assert sorted(kept.numbers[named("eval/score")]) == [0, 4]

    @_killed
    def test_an_evaluation_that_a_crash_forestalled_arrives_after_it(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun, kill: Kill
    ) -> None:
        _track(make(), tracked, [_step(1), _step(2)], kill)
        again = [_step(2), _evaluation(2, 0.5)]
        _track(make(), replace(tracked, resumed_at=1), again)
        assert read(tracked).numbers[named("eval/score")][2] == pytest.approx([0.5])

    @_killed
    def test_a_restarted_run_has_nothing_of_the_try_before(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun, kill: Kill
    ) -> None:
        """Kill a run before its first checkpoint, so that nothing is resumed."""
        _track(make(), tracked, [_step(1, reward=0.25), _step(2)], kill)
        _track(make(), tracked, [_step(1, reward=0.5)])
        rewards = read(tracked).numbers[named("reward")]
        assert dict(rewards) == {1: pytest.approx([0.5])}

    def test_a_tracker_that_is_added_to_a_run_begins_with_its_next_step(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        _track(make(), replace(tracked, resumed_at=5), [_step(6)])
        assert list(read(tracked).numbers[named("reward")]) == [6]

    def test_agents_of_any_name_are_distinguished(
        self, make: Make, read: ReadRun, tracked: TrackedRun
    ) -> None:
        rows = {agent: 100 + index for index, agent in enumerate(_AGENTS)}
        _track(make(), tracked, [msgspec.structs.replace(_step(1), rows=rows)])
        found = sorted(
            steps[1][0]
            for name, steps in read(tracked).numbers.items()
            if "rows" in name and "final" not in name
        )
        assert found == sorted(rows.values())

    def test_a_number_that_is_none_costs_the_others_nothing(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        metrics = {"loss": math.nan, "grad_norm": math.inf, "kl": 0.5}
        report = msgspec.structs.replace(_step(1), metrics=metrics)
        _track(make(), tracked, [report, _step(2)])
        numbers = read(tracked).numbers
        assert numbers[named("metrics/kl")][1] == pytest.approx([0.5])
        assert sorted(numbers[named("reward")]) == [1, 2]

    def test_one_process_tracks_several_runs(
        self, make: Make, read: ReadRun, named: ShownName, tracked: TrackedRun
    ) -> None:
        _track(make(), tracked, [_step(1)])
        second = replace(tracked, name="second", directory=tracked.directory.parent / "second")
        second.directory.mkdir()
        _track(make(), second, [_step(1), _step(2)])
        assert sorted(read(second).numbers[named("reward")]) == [1, 2]


def _track(
    tracker: Tracker,
    run: TrackedRun,
    reports: Iterable[StepReport | Evaluation],
    ending: Report | BaseException | Kill | None = None,
) -> None:
    """Track a run in one thread, as a run does; it ends with a report by default."""
    reports = list(reports)

    def track() -> None:
        tracker.start(run)
        for each in reports:
            if isinstance(each, StepReport):
                tracker.step(each)
            else:
                tracker.evaluation(each)
        if ending is None:
            tracker.finish(_report(run, [each for each in reports if isinstance(each, StepReport)]))
        elif isinstance(ending, (Report, BaseException)):
            tracker.finish(ending)
        else:
            ending(tracker)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(track).result()


def _check(kept: Kept, numbers: Mapping[str, float], step: int, named: ShownName) -> None:
    for name, value in numbers.items():
        steps = kept.numbers.get(named(name), {})
        assert step in steps, f"{name} of step {step} did not arrive"
        assert list(steps[step]) == pytest.approx([value], rel=1e-6), f"{name} of step {step}"


def _check_facts(kept: Kept, facts: Mapping[str, str]) -> None:
    for name, value in facts.items():
        assert kept.facts.get(name) == value, f"{name} is {kept.facts.get(name)!r}, not {value!r}"


def _step(step: int, *, reward: float = 0.125) -> StepReport:
    return StepReport(
        step=step,
        steps=9,
        reward=reward,
        channels={"main": reward, "short": 1.0},
        rollouts=8,
        calls=16,
        tokens=99,
        failures={"agent": 1},
        lost={"late_calls": 2},
        breaks={"writer": {"edited": 3}},
        rows={"writer": 4},
        metrics={"loss": 0.5, "kl": 0.25},
        wall_s=1.5,
    )


def _evaluation(step: int, score: float) -> Evaluation:
    estimate = Estimate(mean=score, low=score - 0.0625, high=score + 0.0625, n=10)
    return Evaluation(
        step=step,
        score=estimate,
        channels={"main": estimate},
        pass_at_k={4: estimate},
        failed={"deadline": 2},
        wall_s=7.0,
    )


def _report(run: TrackedRun, steps: Sequence[StepReport]) -> Report:
    weights: dict[str, Any] = {"version": 2, "path": "p", "sha256_before": "a", "sha256_after": "b"}
    return Report(
        run_id=run.name,
        directory=str(run.directory),
        steps=list(steps),
        policies={"trained": weights},
        prompts={
            "writer": PromptReport(
                text="Answer in one word.\nNever guess.",
                before=Estimate(mean=0.25, low=0.125, high=0.375, n=10),
                after=Estimate(mean=0.5, low=0.375, high=0.625, n=10),
            )
        },
        lost={"late_calls": 2},
        calls=16,
        wall_s=2.0,
        best=str(run.directory / "checkpoints" / "step-000002"),
    )
