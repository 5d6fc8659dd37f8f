"""Trackers: what they are told of a run, when, and what their faults cost."""

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from agl_doctor._diagnose import diagnose
from agl_testing.plugin_contract import PluginContract
from agl_tracking import _threads

import agl_core as agl
from agl_core import waits
from agl_core.app import App
from agl_core.app import _components as components
from agl_core.errors import ConfigError, LeadHeldError, MissingExtraError, TrainingError
from agl_core.plugins import PluginManager
from agl_core.plugins._manager import Source
from agl_core.types import Batch, Evaluation, StepReport
from tests.core.app.conftest import Bench, bench
from tests.core.bandit_engine import BanditEngine
from tests.plugins.tracking import tracking_plugin
from tests.plugins.tracking.tracking_plugin import INSTEAD, THREADS, TOLD

Told = list[tuple[str, Any]]

__all__ = ["bench"]


@pytest.fixture(autouse=True)
def told() -> Iterator[Told]:
    TOLD.clear()
    THREADS.clear()
    INSTEAD.clear()
    yield TOLD
    INSTEAD.clear()


def app_of(bench: Bench, *tables: dict[str, Any], **settings: Any) -> App:
    named = json.dumps(list(tables or [{"name": "recording"}]))
    inputs, observers = settings.pop("inputs", None), settings.pop("observers", ())
    app = bench.app(inputs, observers, trackers=named, **settings)
    app._plugins.register(tracking_plugin, Source(name="recording"))
    return app


def train(bench: Bench, *tables: dict[str, Any], **settings: Any) -> agl.Report:
    return asyncio.run(app_of(bench, *tables, **settings).train())


def methods(told: Told) -> list[str]:
    return [method for method, _ in told]


def only(told: Told, method: str) -> list[Any]:
    return [given for name, given in told if name == method]


def fail(given: Any) -> None:
    raise OSError("no space left on device")


VAL = {"val_tasks": [{"input": 1}]}


class TestPlugin(PluginContract):
    plugin = "agl_tracking.plugin"


def test_it_is_told_everything_in_order_in_one_thread_of_its_own(bench: Bench, told: Told) -> None:
    report = train(bench, inputs=VAL)
    assert methods(told) == ["start", "evaluation", "step", "step", "evaluation", "finish"]
    assert only(told, "step") == report.steps
    assert only(told, "evaluation") == report.evaluations
    assert [agl.Report.of(each) for each in only(told, "finish")] == [report]
    assert sorted(THREADS) == ["agl-tracker-recording"]


def test_it_starts_with_the_run_and_its_configuration(bench: Bench, told: Told) -> None:
    train(bench)
    (run,) = only(told, "start")
    assert run.name == "bench"
    assert run.directory == bench.directory / "bench"
    assert run.resumed_at is None
    assert run.config["algorithm"]["lr"] == 1.0
    assert run.config["trackers"] == [{"name": "recording"}]


def test_it_is_told_of_the_checkpoint_that_a_run_goes_on_from(bench: Bench, told: Told) -> None:
    train(bench)
    told.clear()
    train(bench, train__steps=3, train__resume=True)
    (run,) = only(told, "start")
    assert run.resumed_at == 2
    assert [report.step for report in only(told, "step")] == [3]


def test_a_resumed_run_may_have_other_trackers(bench: Bench, told: Told) -> None:
    train(bench)
    assert train(bench, {"name": "other"}, train__steps=3, train__resume=True).steps
    assert sorted(THREADS) == ["agl-tracker-other", "agl-tracker-recording"]


def test_every_tracker_is_told(bench: Bench, told: Told) -> None:
    train(bench, {"name": "recording"}, {"name": "other", "colour": "blue"})
    assert methods(told).count("step") == 4
    assert sorted(THREADS) == ["agl-tracker-other", "agl-tracker-recording"]


def test_neither_evaluations_apart_nor_trials_are_tracked(bench: Bench, told: Told) -> None:
    asyncio.run(app_of(bench, inputs=VAL).evaluate())
    asyncio.run(diagnose(app_of(bench), tasks=1))
    assert told == []


@pytest.mark.parametrize("method", ["step", "evaluation"])
def test_one_that_fails_is_counted_told_once_and_stops_nothing(
    bench: Bench, told: Told, caplog: Any, method: str
) -> None:
    INSTEAD[method] = fail
    report = train(bench, inputs=VAL)
    assert len(report.steps) == 2
    assert report.lost["tracker_recording_failed"] == 2
    (line,) = [each.message for each in caplog.records if "Tracker" in each.message]
    assert "'recording' failed: OSError: no space left on device" in line
    assert methods(told)[-1] == "finish"
    stored = json.loads((bench.directory / "bench" / "report.json").read_text())
    assert stored["lost"]["tracker_recording_failed"] == 2


def test_one_that_fails_at_the_end_is_in_the_report(bench: Bench, told: Told) -> None:
    INSTEAD["finish"] = fail
    report = train(bench)
    assert report.lost["tracker_recording_failed"] == 1


def test_one_that_exits_is_counted_too(bench: Bench, told: Told) -> None:
    def leave(given: Any) -> None:
        raise SystemExit(1)

    INSTEAD["step"] = leave
    assert train(bench).lost["tracker_recording_failed"] == 2


def test_a_fault_of_one_leaves_the_others_alone(bench: Bench, told: Told) -> None:
    def fail_in_its_thread(given: Any) -> None:
        if threading.current_thread().name == "agl-tracker-recording":
            fail(given)

    INSTEAD["step"] = fail_in_its_thread
    report = train(bench, {"name": "recording"}, {"name": "other"})
    assert report.lost["tracker_recording_failed"] == 2
    assert "tracker_other_failed" not in report.lost


def test_one_that_is_slow_holds_no_step_up(bench: Bench, told: Told) -> None:
    """It may take the first step only when the run has taken its last."""
    all_done = threading.Event()

    class Watcher:
        def started(self, config: Any) -> None: ...

        def step(self, report: StepReport) -> None:
            if report.step == report.steps:
                all_done.set()

        def evaluation(self, evaluation: Evaluation) -> None: ...

        def finished(self, report: agl.Report) -> None: ...

    def wait(report: StepReport) -> None:
        assert all_done.wait(30)

    INSTEAD["step"] = wait
    report = train(bench, observers=(Watcher(),))
    assert "tracker_recording_failed" not in report.lost
    assert only(told, "step") == report.steps


def test_one_that_hangs_is_left_at_the_end(bench: Bench, told: Told, monkeypatch: Any) -> None:
    monkeypatch.setattr(waits, "TRACKERS_S", 0.2)
    released = threading.Event()
    INSTEAD["step"] = lambda report: released.wait(60) and None
    report = train(bench)
    released.set()
    # Of two steps and the end, the tracker sits on the first and never sees the others.
    assert report.lost["tracker_recording_failed"] == 3


def test_one_that_cannot_start_ends_the_run_before_the_engine_loads(
    bench: Bench, told: Told
) -> None:
    INSTEAD["start"] = fail
    with pytest.raises(ConfigError, match=r"Tracker 'recording' cannot be started: OSError: no sp"):
        train(bench)
    assert bench.engine.backends == {}
    assert methods(told) == ["start"]


def test_one_that_says_what_is_wrong_is_quoted_as_it_is(bench: Bench) -> None:
    def refuse(run: Any) -> None:
        raise ConfigError("trackers.0.colour = 'red': take another")

    INSTEAD["start"] = refuse
    with pytest.raises(ConfigError, match=r"^trackers\.0\.colour = 'red': take another$"):
        train(bench)


def test_one_that_does_not_start_in_time_ends_the_run(bench: Bench, monkeypatch: Any) -> None:
    monkeypatch.setattr(_threads, "_START_S", 0.05)
    released = threading.Event()
    INSTEAD["start"] = lambda run: released.wait(60) and None
    with pytest.raises(ConfigError, match=r"'recording' did not start within 0\.05 s"):
        train(bench)
    released.set()


def test_those_that_have_started_are_told_when_another_cannot(bench: Bench, told: Told) -> None:
    def fail_in_its_thread(given: Any) -> None:
        if threading.current_thread().name == "agl-tracker-other":
            fail(given)

    INSTEAD["start"] = fail_in_its_thread
    with pytest.raises(ConfigError, match="'other' cannot be started"):
        train(bench, {"name": "recording"}, {"name": "other"})
    assert methods(told) == ["start", "start", "finish"]
    (outcome,) = only(told, "finish")
    assert isinstance(outcome, ConfigError)


def test_it_is_told_of_the_error_that_ends_a_run(
    bench: Bench, told: Told, monkeypatch: Any
) -> None:
    async def fail_at_the_second(engine: BanditEngine, batch: Batch) -> Any:
        if batch.step == 1:
            raise TrainingError("the loss is not finite")
        return await update(engine, batch)

    update = BanditEngine.update
    monkeypatch.setattr(BanditEngine, "update", fail_at_the_second)
    with pytest.raises(TrainingError):
        train(bench)
    (outcome,) = only(told, "finish")
    assert isinstance(outcome, TrainingError)
    assert [report.step for report in only(told, "step")] == [1]


@pytest.mark.parametrize(
    ("tables", "error", "said"),
    [
        ([{"name": "recordin"}], ConfigError, "did you mean 'recording'"),
        ([{"name": "recording", "color": "x"}], ConfigError, r"did you mean 'trackers\.0\.colour'"),
        ([{"name": "recording", "colour": 3}], ConfigError, r"trackers\.0\.colour = 3"),
        ([{"name": "uninstalled"}], MissingExtraError, "a_package_that_is_not_there: pip install"),
    ],
)
def test_what_is_misconfigured_is_told_before_anything_starts(
    bench: Bench, tables: Any, error: Any, said: str
) -> None:
    with pytest.raises(error, match=said):
        train(bench, *tables)
    assert not (bench.directory / "bench").exists()


def test_a_tracker_is_named_once(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="the tracker 'recording' is named twice"):
        app_of(bench, {"name": "recording"}, {"name": "recording"})


def test_without_the_plugin_that_calls_trackers_a_run_with_some_is_refused(bench: Bench) -> None:
    app = app_of(bench)
    app._plugins = PluginManager(environ={})
    with pytest.raises(ConfigError, match="Unknown observer 'trackers'"):
        asyncio.run(app.train())


def test_a_trainer_that_is_refused_starts_no_tracker(
    bench: Bench, told: Told, monkeypatch: Any
) -> None:
    def refused(store: Any, *, lease_s: float) -> Any:
        raise LeadHeldError("other-1-abcd", 0.0)

    monkeypatch.setattr(components, "leading", refused)
    with pytest.raises(LeadHeldError):
        train(bench)
    assert told == []
