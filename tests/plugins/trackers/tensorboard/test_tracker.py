"""Event files, read by TensorBoard's own reader."""

import errno
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from agl_tensorboard import _events
from agl_tensorboard._options import TensorBoardOptions
from agl_tensorboard._tracker import TensorBoardTracker
from agl_testing.tracker_contract import Kept, TrackerContract
from agl_tracking import flat_config
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.util.tensor_util import make_ndarray

from agl_core.interfaces import TrackedRun
from agl_core.types import StepReport


def read(run: TrackedRun) -> Kept:
    """As TensorBoard shows the folder of all runs."""
    shown = EventMultiplexer(size_guidance={"scalars": 0, "tensors": 0})
    shown.AddRunsFromDirectory(str(run.directory.parent)).Reload()
    mine = f"{run.name}/tensorboard"
    tags = shown.Runs()[mine]
    numbers: dict[str, dict[int, list[float]]] = {}
    for tag in tags["scalars"]:
        by_step: dict[int, list[float]] = defaultdict(list)
        for event in shown.Scalars(mine, tag):
            by_step[event.step].append(event.value)
        numbers[tag] = dict(by_step)
    texts = {
        tag.removesuffix("/text_summary"): make_ndarray(shown.Tensors(mine, tag)[-1].tensor_proto)
        .item()
        .decode()
        for tag in tags["tensors"]
    }
    config = json.loads(texts.pop("config").removeprefix("```json\n").removesuffix("\n```"))
    runs = [name for name in shown.Runs() if name == mine]
    return Kept(numbers=numbers, settings=flat_config(config), facts=texts, runs=len(runs))


class TestContract(TrackerContract):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: TensorBoardTracker(TensorBoardOptions())

    @pytest.fixture
    def read(self) -> Any:
        return read


def step(number: int, reward: float) -> StepReport:
    return StepReport(step=number, steps=9, reward=reward)


def rewards(run: TrackedRun) -> dict[int, list[float]]:
    return {step: list(values) for step, values in read(run).numbers["reward"].items()}


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    return TrackedRun(name="run", directory=tmp_path / "run", config={"name": "run"})


def test_the_last_value_of_a_repeated_step_counts(run: TrackedRun) -> None:
    first = TensorBoardTracker(TensorBoardOptions())
    first.start(run)
    for number in (1, 2, 3):
        first.step(step(number, 0.25))
    first.finish(OSError("lost power"))
    resumed = TrackedRun(name="run", directory=run.directory, config={}, resumed_at=2)
    second = TensorBoardTracker(TensorBoardOptions())
    second.start(resumed)
    second.step(step(3, 0.5))
    second.finish(OSError("lost power"))
    assert rewards(run) == {1: [0.25], 2: [0.25], 3: [0.5]}


def test_files_go_where_the_option_says(run: TrackedRun, tmp_path: Path) -> None:
    tracker = TensorBoardTracker(TensorBoardOptions(directory=str(tmp_path / "elsewhere")))
    tracker.start(run)
    tracker.finish(OSError("over"))
    assert list((tmp_path / "elsewhere" / "run").glob("events.out.tfevents.*"))
    assert not run.directory.exists()


def test_a_full_disk_is_noticed_and_what_comes_after_it_is_read(
    run: TrackedRun, monkeypatch: Any
) -> None:
    tracker = TensorBoardTracker(TensorBoardOptions())
    tracker.start(run)
    tracker.step(step(1, 0.25))

    def half(writer: Any, data: bytes) -> None:
        whole(writer, data)
        writer._writer.flush()
        writer._writer.truncate(writer._writer.tell() - 5)
        raise OSError(errno.ENOSPC, "No space left on device")

    whole = _events.RecordWriter.write
    with monkeypatch.context() as patched:
        patched.setattr(_events.RecordWriter, "write", half)
        with pytest.raises(OSError, match="No space left"):
            tracker.step(step(2, 0.25))
    tracker.step(step(3, 0.75))
    tracker.finish(OSError("over"))
    assert rewards(run) == {1: [0.25], 3: [0.75]}
