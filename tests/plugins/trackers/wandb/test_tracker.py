"""Runs of W&B in its offline mode, read from the records that ``wandb sync`` would send."""

import json
import math
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from agl_testing.tracker_contract import Kept, TrackerContract
from agl_tracking import flat_config
from agl_wandb._options import WandbOptions
from agl_wandb._tracker import WandbTracker
from wandb.proto import wandb_internal_pb2

from agl_core.errors import ConfigError
from agl_core.interfaces import TrackedRun
from agl_core.types import Report

BLOCK = 32768
HEADER = 7


@pytest.fixture(autouse=True)
def offline(monkeypatch: Any, tmp_path: Path) -> None:
    """No key, no home with one, and no network."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def records(file: Path) -> Iterator[Any]:
    """The file is a log of LevelDB's format whose entries are W&B's own messages."""
    wandb.teardown()  # what writes it is a process of its own, which is done when it has ended
    data, at, entry = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        entry += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(entry)
            yield record
            entry = b""


def read(run: TrackedRun) -> Kept:
    files = sorted((run.directory / "wandb").glob("wandb/offline-run-*/*.wandb"))
    files = files or sorted(run.directory.glob("wandb/offline-run-*/*.wandb"))
    log = json.loads((run.directory / "trackers" / "wandb.json").read_text(encoding="utf-8"))
    last = f"run-{log['run']}"  # which of them is: two may begin within one second
    numbers: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    settings: dict[str, Any] = {}
    facts: dict[str, Any] = {}
    for record in (each for file in files if file.stem == last for each in records(file)):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            _take(record.history.item, numbers)
        elif kind == "run":
            settings |= {each.key: json.loads(each.value_json) for each in record.run.config.update}
        elif kind == "summary":
            for each in record.summary.update:
                facts[each.key or "/".join(each.nested_key)] = json.loads(each.value_json)
    return Kept(numbers=numbers, settings=flat_config(settings), facts=facts, runs=1)


def _take(items: Any, numbers: Any) -> None:
    row = {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in items}
    for name, value in row.items():
        if not name.startswith("_") and name != "step":
            number = math.nan if value == "NaN" else float(value)
            numbers[name][row["step"]].append(number)


class TestContract(TrackerContract):
    @pytest.fixture
    def make(self) -> Any:
        return lambda: WandbTracker(WandbOptions(mode="offline"))

    @pytest.fixture
    def read(self) -> Any:
        return read

    @pytest.fixture
    def kill(self) -> Any:
        """W&B's own process notices the end of ours."""
        return lambda tracker: tracker._run.finish(exit_code=255)


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    directory = tmp_path / "runs" / "run"
    directory.mkdir(parents=True)
    return TrackedRun(name="run", directory=directory, config={"a": 1})


def test_the_run_is_what_the_options_and_the_environment_say(
    run: TrackedRun, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "ours")
    tracker = WandbTracker(WandbOptions(group="night", tags=["try"]))
    tracker.start(run)
    tracker.finish(Report(run_id="run", directory=str(run.directory)))
    (file,) = run.directory.glob("wandb/offline-run-*/*.wandb")
    (told,) = [each.run for each in records(file) if each.WhichOneof("record_type") == "run"]
    assert (told.project, told.run_group, told.display_name) == ("ours", "night", "run")
    assert list(told.tags) == ["try"]


@pytest.mark.parametrize(
    ("outcome", "code"), [(OSError("disk full"), 1), (None, 0)], ids=["failed", "well"]
)
def test_the_run_ends_as_ours_did(run: TrackedRun, outcome: Any, code: int) -> None:
    tracker = WandbTracker(WandbOptions(mode="offline"))
    tracker.start(run)
    tracker.finish(outcome or Report(run_id="run", directory=str(run.directory)))
    (file,) = run.directory.glob("wandb/offline-run-*/*.wandb")
    (end,) = [each.exit for each in records(file) if each.WhichOneof("record_type") == "exit"]
    assert end.exit_code == code


def test_without_a_key_online_is_an_error_that_says_what_to_do(run: TrackedRun) -> None:
    tracker = WandbTracker(WandbOptions())
    with pytest.raises(ConfigError, match=r"WANDB_API_KEY or run wandb login .* mode = 'offline'"):
        tracker.start(run)
