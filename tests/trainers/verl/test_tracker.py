"""verl's own tracking, read back from what its backends wrote."""

import json
import math
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from agl_testing.tracker_contract import Kept, TrackerContract
from agl_verl._tracker import VerlTracker, VerlTrackerOptions
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_tracking
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError
from agl_core.interfaces import TrackedRun
from agl_core.types import Report, StepReport
from tests.trainers.verl import verl_parts  # noqa: F401 (verl imported without its warnings)

Numbers = dict[str, dict[int, list[float]]]

NO_TEXTS = "verl's tracking takes numbers only"


@pytest.fixture(autouse=True)
def environment(monkeypatch: Any, tmp_path: Path) -> None:
    for name in ("TENSORBOARD_DIR", "VERL_FILE_LOGGER_PATH", "VERL_FILE_LOGGER_ROOT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def folder_of(run: TrackedRun) -> Path:
    log = json.loads((run.directory / "trackers" / "verl.json").read_text())
    return run.directory / "verl" / log["run"]


def in_tensorboard(run: TrackedRun) -> Numbers:
    shown = EventAccumulator(str(folder_of(run) / "tensorboard"), size_guidance={"scalars": 0})
    shown.Reload()
    numbers: Numbers = defaultdict(lambda: defaultdict(list))
    for name in shown.Tags()["scalars"]:
        for event in shown.Scalars(name):
            numbers[name][event.step].append(event.value)
    return numbers


def in_files(run: TrackedRun) -> Numbers:
    numbers: Numbers = defaultdict(lambda: defaultdict(list))
    for file in folder_of(run).glob("numbers-*.jsonl"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            for name, value in row["data"].items():
                numbers[name][row["step"]].append(math.nan if value is None else value)
    return numbers


class OfABackend(TrackerContract):
    @pytest.mark.xfail(reason=NO_TEXTS, raises=AssertionError, strict=True)
    def test_the_configuration_arrives(self, make: Any, read: Any, tracked: Any) -> None:
        super().test_the_configuration_arrives(make, read, tracked)

    @pytest.mark.xfail(reason=NO_TEXTS, raises=AssertionError, strict=True)
    def test_the_weights_and_prompts_arrive(self, make: Any, read: Any, tracked: Any) -> None:
        super().test_the_weights_and_prompts_arrive(make, read, tracked)

    @pytest.mark.xfail(reason=NO_TEXTS, raises=AssertionError, strict=True)
    def test_why_a_run_failed_arrives(self, make: Any, read: Any, tracked: Any) -> None:
        super().test_why_a_run_failed_arrives(make, read, tracked)


class TestTensorBoard(OfABackend):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: VerlTracker(VerlTrackerOptions(backends=["tensorboard"]))

    @pytest.fixture
    def read(self) -> Any:
        return lambda run: Kept(numbers=in_tensorboard(run))


class TestFile(OfABackend):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: VerlTracker(VerlTrackerOptions(backends=["file"]))

    @pytest.fixture
    def read(self) -> Any:
        return lambda run: Kept(numbers=in_files(run))


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    directory = tmp_path / "runs" / "run"
    directory.mkdir(parents=True)
    return TrackedRun(name="run", directory=directory, config={"name": "run"})


def tracked(run: TrackedRun, *backends: str) -> None:
    tracker = VerlTracker(VerlTrackerOptions(backends=list(backends), project="shop"))
    tracker.start(run)
    tracker.step(StepReport(step=1, steps=1, reward=0.25))
    tracker.finish(Report(run_id="run", directory=str(run.directory)))


def test_a_run_file_names_it_with_verls_backends() -> None:
    config = resolve({"trackers": [{"name": "verl", "backends": ["console", "file"]}]})
    (tracking,) = make_tracking(config, load_plugins(), lambda: pytest.fail("it was started"))
    assert isinstance(tracking._threads[0].tracker, VerlTracker)


def test_the_console_shows_every_step(run: TrackedRun, capsys: Any) -> None:
    tracked(run, "console")
    assert "step:1 - reward:0.25" in capsys.readouterr().out


def test_variables_of_the_user_say_where_files_go(
    run: TrackedRun, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "events"))
    monkeypatch.setenv("VERL_FILE_LOGGER_ROOT", str(tmp_path / "files"))
    tracked(run, "tensorboard", "file")
    assert list((tmp_path / "events").glob("events.out.tfevents.*"))
    assert (tmp_path / "files" / "shop" / "run.jsonl").read_text().startswith('{"step":1')


def test_the_environment_stays_as_it_was(run: TrackedRun) -> None:
    before = dict(os.environ)
    tracked(run, "file", "tensorboard")
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("tensorbord", "verl has no backend 'tensorbord', only wandb, mlflow"),
        ("swanlab", "needs the package 'swanlab', which is not installed: pip install swanlab"),
    ],
)
def test_a_backend_that_cannot_be_had_is_told(run: TrackedRun, backend: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tracked(run, backend)


def test_runs_at_wandb_have_ids_of_their_own_and_keep_them(
    run: TrackedRun, tmp_path: Path, monkeypatch: Any
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    wandb.teardown()
    second = tmp_path / "runs" / "second"
    second.mkdir()
    tracked(run, "wandb")
    tracked(TrackedRun(name="second", directory=second, config={}), "wandb")
    tracked(TrackedRun(name="run", directory=run.directory, config={}, resumed_at=1), "wandb")
    wandb.teardown()
    ids = [file.stem for file in run.directory.glob("wandb/offline-run-*/run-*.wandb")]
    others = [file.stem for file in second.glob("wandb/offline-run-*/run-*.wandb")]
    assert len(ids) == 2
    assert len(set(ids)) == len(set(others)) == 1
    assert set(ids).isdisjoint(others)
