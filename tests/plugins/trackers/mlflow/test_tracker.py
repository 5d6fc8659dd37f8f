"""Runs in a file, read by MLflow's own client."""

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from agl_mlflow._names import mlflow_name
from agl_mlflow._options import MlflowOptions
from agl_mlflow._tracker import MlflowTracker
from agl_testing.tracker_contract import Kept, TrackerContract
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from agl_core.errors import ConfigError
from agl_core.interfaces import TrackedRun
from agl_core.types import PromptReport, Report, StepReport


@pytest.fixture(autouse=True)
def database(empty_mlflow: Path, tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    folder = tmp_path / "runs"
    folder.mkdir()
    return Path(shutil.copy(empty_mlflow, folder / "mlflow.db"))


def last_run(run: TrackedRun) -> tuple[MlflowClient, Any, int]:
    client = MlflowClient(tracking_uri=f"sqlite:///{run.directory.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("agl")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
    return client, found[-1], len(found)


def read(run: TrackedRun) -> Kept:
    client, last, runs = last_run(run)
    numbers: dict[str, dict[int, list[float]]] = {}
    for name in last.data.metrics:
        by_step: dict[int, list[float]] = defaultdict(list)
        for metric in client.get_metric_history(last.info.run_id, name):
            by_step[metric.step].append(metric.value)
        numbers[name] = dict(by_step)
    settings, facts = last.data.params, last.data.tags
    return Kept(numbers=numbers, settings=settings, facts=facts, runs=runs)


class TestContract(TrackerContract):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: MlflowTracker(MlflowOptions())

    @pytest.fixture
    def read(self) -> Any:
        return read

    @pytest.fixture
    def named(self) -> Any:
        return mlflow_name


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    directory = tmp_path / "runs" / "run"
    directory.mkdir()
    return TrackedRun(name="run", directory=directory, config={"train": {"steps": 2}})


def report(run: TrackedRun) -> Report:
    return Report(run_id=run.name, directory=str(run.directory))


def started(run: TrackedRun, **options: Any) -> MlflowTracker:
    tracker = MlflowTracker(MlflowOptions(**options))
    tracker.start(run)
    return tracker


@pytest.mark.parametrize(
    ("outcome", "status"),
    [(OSError("disk full"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (None, "FINISHED")],
)
def test_the_run_has_the_status_of_ours(run: TrackedRun, outcome: Any, status: str) -> None:
    tracker = started(run, tags={"team": "blue"})
    assert last_run(run)[1].info.status == "RUNNING"
    tracker.finish(outcome or report(run))
    _, last, _ = last_run(run)
    assert last.info.status == status
    assert last.info.run_name == "run"
    assert last.data.tags["team"] == "blue"


def test_settings_that_a_resumption_changes_are_tags(run: TrackedRun) -> None:
    started(run).finish(report(run))
    resumed = TrackedRun(
        name="run", directory=run.directory, config={"train": {"steps": 4}}, resumed_at=2
    )
    started(resumed)
    _, last, _ = last_run(run)
    assert last.info.status == "RUNNING"
    assert last.data.params["train.steps"] == "2"
    assert last.data.tags["resumed/train.steps"] == "4"


def test_files_of_the_run_lie_beside_it(run: TrackedRun) -> None:
    started(run)
    _, last, _ = last_run(run)
    assert last.info.artifact_uri.startswith((run.directory.parent / "mlartifacts").as_uri())


def test_a_second_run_shares_the_experiment(run: TrackedRun) -> None:
    started(run)
    second = run.directory.parent / "second"
    second.mkdir()
    started(TrackedRun(name="second", directory=second, config={}))
    assert last_run(run)[2] == 2


def test_a_run_that_is_gone_is_an_error(run: TrackedRun) -> None:
    started(run)
    (run.directory.parent / "mlflow.db").unlink()
    resumed = TrackedRun(name="run", directory=run.directory, config={}, resumed_at=1)
    with pytest.raises(MlflowException):
        started(resumed)


def test_a_database_that_is_away_is_an_error_of_that_step(run: TrackedRun) -> None:
    tracker = started(run)
    tracker._client.delete_run(tracker._sent_log.run)
    with pytest.raises(MlflowException):
        tracker.step(StepReport(step=1, steps=2, reward=0.5))


@pytest.mark.parametrize("folder", ["./mlruns", "file:///tmp/mlruns"])
def test_a_folder_is_refused(run: TrackedRun, folder: str) -> None:
    with pytest.raises(ConfigError, match="use sqlite:///FILE or a server"):
        started(run, tracking_uri=folder)


def test_a_password_is_refused() -> None:
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_PASSWORD"):
        MlflowOptions(tracking_uri="postgresql://me:pw@db/mlflow")


def test_names_become_ones_that_mlflow_takes() -> None:
    assert mlflow_name("rows/writer") == "rows/writer"
    assert mlflow_name("rows/@selector") == "rows/_40_selector"
    assert mlflow_name("rows/a//b") == "rows/a_2f__2f_b"
    assert mlflow_name("rows/..") == "rows/_2e__2e_"
    assert mlflow_name("rows/") == "rows/_"
    assert len(mlflow_name("rows/" + "x" * 999)) == 250


def test_a_prompt_that_is_too_long_for_a_tag_is_whole_in_a_file(run: TrackedRun) -> None:
    text = "é" * 9000
    tracker = started(run)
    prompts = {"writer": PromptReport(text=text)}
    tracker.finish(Report(run_id="run", directory=str(run.directory), prompts=prompts, wall_s=1.0))
    client, last, _ = last_run(run)
    assert last.data.tags["final/prompt/writer"] == text[:5000]
    file = client.download_artifacts(last.info.run_id, "final/prompt/writer.txt")
    assert Path(file).read_text(encoding="utf-8") == text
