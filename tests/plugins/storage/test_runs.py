"""Runs that are mirrored to a storage in this process, and resumed from it elsewhere."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agl_storage._manifest import StorageError
from agl_storage._remote import Remote
from agl_testing.plugin_contract import PluginContract

import agl_core as agl
from agl_core.errors import ConfigError, MissingExtraError, TrainingError, pip_line
from agl_core.types import Losses
from tests.core.app.conftest import Bench
from tests.core.bandit_engine import BanditEngine

URL = "memory://bucket/runs"
ROOT = "/bucket/runs/bench"
VAL = {"val_tasks": [{"input": 1}]}


class TestPlugin(PluginContract):
    plugin = "agl_storage.plugin"
    frameworks = ("fsspec", "s3fs")


def train(bench: Bench, inputs: Any = None, storage: Any = None, **settings: Any) -> agl.Report:
    """Train with a checkpoint at the end alone, unless settings say more."""
    bench.sections["storage"] = {"url": URL, **(storage or {})}
    return bench.train(inputs, **{"train__checkpoint_every": 9, **settings})


def elsewhere(bench: Bench, tmp_path: Path) -> Bench:
    """The same run on a machine that has nothing of it."""
    other = Bench(tmp_path / "elsewhere")
    other.sections = dict(bench.sections)
    return other


def names(memory: Any, folder: str = f"{ROOT}/checkpoints") -> set[str]:
    return {path.removeprefix(f"{folder}/").partition("/")[0] for path in memory.find(folder)}


def test_checkpoints_report_and_configuration_are_stored(bench: Bench, memory: Any) -> None:
    report = train(bench, train__checkpoint_every=1)

    assert names(memory) == {"step-000001", "step-000002"}
    stored = memory.cat_file(f"{ROOT}/checkpoints/step-000002/policies/trained/logits.json")
    local = Path(report.best or "") / "policies/trained/logits.json"
    assert stored == local.read_bytes()
    assert json.loads(memory.cat_file(f"{ROOT}/report.json"))["run_id"] == "bench"
    assert json.loads(memory.cat_file(f"{ROOT}/config.json"))["name"] == "bench"
    manifest = json.loads(memory.cat_file(f"{ROOT}/checkpoints/step-000002/manifest.json"))
    assert set(manifest["files"]) == {
        "policies/trained/logits.json",
        "state.json",
        "state.json.sha256",
    }
    assert manifest["files"]["policies/trained/logits.json"]["size"] == len(stored)
    own = json.loads(memory.cat_file(f"{ROOT}/manifest.json"))
    assert set(own["files"]) == {"config.json", "report.json"}
    assert not [cause for cause in report.lost if cause.startswith("storage")]
    assert not (bench.directory / "bench" / ".storage").exists()


def test_what_the_run_deletes_leaves_the_storage(bench: Bench, memory: Any) -> None:
    settings: dict[str, Any] = {"train__checkpoint_every": 1, "train__keep_checkpoints": 1}
    train(bench, train__steps=3, **settings)
    assert "step-000003" in names(memory)
    assert len(names(memory)) <= 2

    bench.sections["name"] = "all"
    train(bench, storage={"prune": False}, train__steps=3, **settings)
    assert "step-000003" in names(memory, "/bucket/runs/all/checkpoints")


def test_a_run_continues_on_another_machine(bench: Bench, tmp_path: Path, memory: Any) -> None:
    whole = Bench(tmp_path / "whole").train(VAL, train__steps=4)
    train(bench, VAL, train__steps=2)
    other = elsewhere(bench, tmp_path)

    report = train(other, VAL, train__steps=4, train__resume=True)

    assert [step.step for step in report.steps] == [1, 2, 3, 4]
    for field in ("sha256_before", "sha256_after", "version"):
        assert report.policies["trained"][field] == whole.policies["trained"][field]
    for place in (0, -1):
        assert report.evaluations[place].score == whole.evaluations[place].score
    assert names(memory) == {"step-000002", "step-000004"}


def test_a_folder_that_machines_share_is_a_storage(bench: Bench, tmp_path: Path) -> None:
    shared = {"url": f"file://{tmp_path}/shared folder/runs"}
    train(bench, storage=shared)
    folder = tmp_path / "shared folder" / "runs" / "bench"
    assert (folder / "checkpoints" / "step-000002" / "manifest.json").is_file()
    (folder / "checkpoints" / "step-000004").mkdir()
    (folder / "checkpoints" / "step-000004" / "half").write_text("")
    other = elsewhere(bench, tmp_path)

    report = train(other, storage=shared, train__steps=3, train__resume=True)

    assert len(other.engine.batches) == 1
    assert (folder / "checkpoints" / Path(report.best or "").name / "manifest.json").is_file()
    assert not (folder / "checkpoints" / "step-000004").exists()


def test_the_best_checkpoint_comes_too(bench: Bench, tmp_path: Path, memory: Any) -> None:
    first = train(bench, VAL, train__steps=3, train__eval_every=1)
    manifests = {
        name: json.loads(memory.cat_file(f"{ROOT}/checkpoints/{name}/manifest.json"))
        for name in names(memory)
    }
    scores = {name: each["facts"]["score"] for name, each in manifests.items()}
    assert scores["step-000003"] == first.evaluations[-1].score.mean
    best = Path(first.best or "").name
    other = elsewhere(bench, tmp_path)

    report = train(other, VAL, train__steps=3, train__eval_every=1, train__resume=True)

    assert Path(report.best or "").name == best
    assert Path(report.best or "").is_dir()


def test_a_newer_local_checkpoint_is_taken_and_stored(bench: Bench, memory: Any) -> None:
    train(bench, train__steps=1)
    bench.sections.pop("storage")
    bench.train(train__steps=2, train__resume=True, train__checkpoint_every=9)
    assert names(memory) == {"step-000001"}

    train(bench, train__steps=3, train__resume=True)

    assert names(memory) == {"step-000002", "step-000003"}  # as many as the run keeps


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda fs, at: fs.rm_file(f"{at}/manifest.json"), "no manifest.json: its upload did not"),
        (lambda fs, at: fs.pipe_file(f"{at}/manifest.json", b"{"), "manifest.json cannot be read"),
        (
            lambda fs, at: fs.pipe_file(
                f"{at}/manifest.json",
                b'{"created": "", "files": {"../x": {"size": 1, "sha256": ""}}}',
            ),
            r"names the file '\.\./x'",
        ),
        (
            lambda fs, at: fs.pipe_file(
                f"{at}/manifest.json", b'{"created": "", "files": {}, "version": 9}'
            ),
            "later release",
        ),
        (lambda fs, at: fs.rm_file(f"{at}/policies/trained/logits.json"), "logits.json is missing"),
        (lambda fs, at: fs.pipe_file(f"{at}/policies/trained/logits.json", b"[0"), "has 2 bytes"),
        (
            lambda fs, at: fs.pipe_file(
                f"{at}/policies/trained/logits.json",
                fs.cat_file(f"{at}/policies/trained/logits.json")
                .replace(b"1", b"2")
                .replace(b"0", b"3"),
            ),
            "has the sha256",
        ),
    ],
)
def test_a_damaged_checkpoint_is_skipped(
    bench: Bench, tmp_path: Path, memory: Any, caplog: Any, harm: Any, reason: str
) -> None:
    train(bench, train__checkpoint_every=1)
    harm(memory, f"{ROOT}/checkpoints/step-000002")
    other = elsewhere(bench, tmp_path)
    caplog.clear()

    report = train(other, train__checkpoint_every=1, train__resume=True)

    skipped = [r.getMessage() for r in caplog.records if "is skipped" in r.getMessage()]
    (message,) = skipped
    assert "step-000002" in message
    assert re.search(reason, message)
    assert len(other.engine.batches) == 1
    assert [step.step for step in report.steps] == [1, 2]
    assert not list(other.directory.glob("bench/checkpoints/.*"))


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(
    bench: Bench, tmp_path: Path, memory: Any
) -> None:
    train(bench)
    memory.pipe_file(f"{ROOT}/checkpoints/step-000002/state.json", b"{}")

    with pytest.raises(ConfigError, match=r"All checkpoints in memory://.* are damaged"):
        train(elsewhere(bench, tmp_path), train__resume=True)


def test_a_run_of_that_name_is_not_overwritten(bench: Bench, tmp_path: Path, memory: Any) -> None:
    train(bench)
    before = {path: memory.cat_file(path) for path in memory.find(ROOT)}
    other = elsewhere(bench, tmp_path)

    with pytest.raises(ConfigError, match=r"'bench' in memory://.*train\.resume = true"):
        train(other)
    with pytest.raises(ConfigError, match="step-000002 was written with other settings"):
        train(other, train__resume=True, algorithm__lr=0.5)
    assert before == {path: memory.cat_file(path) for path in memory.find(ROOT)}


def test_folders_may_differ_between_machines(bench: Bench, tmp_path: Path, memory: Any) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        (tmp_path / folder / "tasks.jsonl").write_text("1\n2\n3\n4\n")
    bench.sections["tasks"] = {"train": str(tmp_path / "a" / "tasks.jsonl")}
    train(bench)
    other = elsewhere(bench, tmp_path)
    other.sections["tasks"] = {"train": str(tmp_path / "b" / "tasks.jsonl")}

    report = train(other, train__steps=3, train__resume=True)
    again = train(other, train__steps=4, train__resume=True)

    assert len(report.steps) == 3
    assert len(again.steps) == 4


def test_without_a_stored_checkpoint_the_run_starts(bench: Bench, memory: Any) -> None:
    assert len(train(bench, train__resume=True).steps) == 2


class Failing(Remote):
    """A storage that fails while `down` is set, and says when it was asked."""

    down = threading.Event()
    asked = threading.Event()

    def write(self, name: str, data: bytes) -> None:
        if self.down.is_set():
            self.asked.set()
            raise StorageError(f"Storage {self.url}: planted")
        super().write(name, data)


class Waiting(BanditEngine):
    """Takes the storage down before its first update, and waits until uploads have failed."""

    mend = False

    async def update(self, batch: Any) -> Any:
        if batch.step == 0:
            Failing.down.set()
        else:
            assert await asyncio.to_thread(Failing.asked.wait, 60)
            if self.mend:
                Failing.down.clear()
        return await super().update(batch)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> type[Waiting]:
    monkeypatch.setattr("agl_storage._observer.Remote", Failing)
    monkeypatch.setattr("agl_storage._mirror._FIRST_RETRY_S", 0.01)
    monkeypatch.setattr("agl_storage._mirror._LONGEST_RETRY_S", 0.02)
    Failing.down.clear()
    Failing.asked.clear()
    bench.engine_class = Waiting
    return Waiting


def test_a_storage_that_comes_back_gets_everything(
    bench: Bench, memory: Any, failing: type[Waiting], monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(failing, "mend", True)

    report = train(bench, train__checkpoint_every=1)

    assert report.lost["storage_failures"] >= 1
    assert "storage_not_mirrored" not in report.lost
    assert "step-000002" in names(memory)
    texts = [record.getMessage() for record in caplog.records]
    assert sum("it is tried again, and the run continues" in text for text in texts) == 1
    assert sum("takes files again" in text for text in texts) == 1


def test_a_storage_that_stays_down_costs_the_run_nothing(
    bench: Bench, memory: Any, failing: type[Waiting], caplog: Any
) -> None:
    report = train(bench, storage={"flush_s": 0.1}, train__checkpoint_every=1)

    assert len(report.steps) == 2
    assert report.lost["storage_not_mirrored"] >= 1
    assert any(
        "step-000002" in r.getMessage() and "planted" in r.getMessage() for r in caplog.records
    )
    Failing.down.clear()
    bench.engine_class = None
    train(bench, train__checkpoint_every=1, train__steps=3, train__resume=True)
    assert names(memory) == {"step-000002", "step-000003"}  # as many as the run keeps


def test_a_required_storage_ends_the_run(bench: Bench, memory: Any, failing: type[Waiting]) -> None:
    with pytest.raises(TrainingError, match=r"storage\.required = true.*planted"):
        train(bench, storage={"required": True, "flush_s": 0.1}, train__checkpoint_every=1)


def test_a_run_that_fails_has_stored_its_checkpoints(bench: Bench, memory: Any) -> None:
    class Broken(BanditEngine):
        async def update(self, batch: Any) -> Any:
            if batch.step == 1:
                raise TrainingError("the planted error")
            return await super().update(batch)

    bench.engine_class = Broken
    with pytest.raises(TrainingError, match="planted"):
        train(bench, train__checkpoint_every=1)
    assert names(memory) == {"step-000001"}


def test_a_trainer_that_was_superseded_stores_nothing_more(
    bench: Bench, memory: Any, caplog: Any
) -> None:
    class Overtaken(BanditEngine):
        async def update(self, batch: Any) -> Any:
            if batch.step == 1:
                memory.pipe_file(f"{ROOT}/owner.json", b'{"id": "other", "host": "elsewhere"}')
            return await super().update(batch)

    bench.engine_class = Overtaken
    report = train(bench, storage={"flush_s": 60}, train__checkpoint_every=1)

    assert len(report.steps) == 2
    assert "step-000002" not in names(memory)
    assert any("Another trainer has continued" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        ({"url": "bucket/prefix"}, r"storage\.url = 'bucket/prefix' is no address"),
        ({"url": ""}, "AGL_STORAGE_URL"),
        ({"url": "gopher://bucket"}, "gopher"),
        ({"url": "https://127.0.0.1:1/x"}, "can only be read|Cannot connect"),
        ({"uri": "memory://x"}, r"storage\.uri.*did you mean"),
        ({"flush_s": -1}, r"storage\.flush_s"),
    ],
)
def test_a_wrong_section_is_named_before_the_run(
    bench: Bench, memory: Any, storage: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        train(bench, storage=storage)
    assert not bench.engines or not bench.engine.batches


def test_without_its_library_the_section_names_what_to_install(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(MissingExtraError, match=re.escape(pip_line("storage"))):
        train(bench)


def test_passwords_are_not_shown(bench: Bench) -> None:
    with pytest.raises(ConfigError) as caught:
        train(bench, storage={"url": "http://me:pa55@127.0.0.1:1/x"})
    assert "pa55" not in str(caught.value)


def test_the_address_may_come_from_the_environment(
    bench: Bench, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGL_STORAGE_URL", URL)
    train(bench, storage={"url": ""})
    assert names(memory) == {"step-000002"}


def test_secrets_stay_here(bench: Bench, memory: Any) -> None:
    train(bench, storage={"options": {"secret": "planted-secret"}})
    stored = b"".join(memory.cat_file(path) for path in memory.find(ROOT))
    assert b"planted-secret" not in stored


def test_interrupted_and_half_uploads_are_removed(bench: Bench, memory: Any) -> None:
    half = f"{ROOT}/checkpoints/step-000009"
    memory.pipe_file(f"{half}/policies/trained/logits.json", b"[0, 0")

    train(bench)

    assert not memory.exists(half)


class Watching:
    """An observer with a section of its own, which comes before ``[storage]`` in the file."""

    @agl.hookimpl
    def agl_register_observers(self, register: Any) -> None:
        register("aside", f"{__name__}:make_watcher")


RESUMED: list[int | None] = []


def make_watcher(config: Any, plugins: Any, describe: Any) -> Any:
    class Watcher(Ignoring):
        @asynccontextmanager
        async def following(self) -> AsyncGenerator[None]:
            RESUMED.append(describe().resumed_at)
            yield

    return Watcher()


class Ignoring:
    losses = Losses()
    brings_checkpoints = False

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    async def finish(self, report: Any) -> None:
        return


def test_other_observers_see_the_fetched_checkpoint(
    bench: Bench, tmp_path: Path, memory: Any
) -> None:
    train(bench)
    other = elsewhere(bench, tmp_path)
    other.plugins = [Watching()]
    other.sections = {"aside": {}, **other.sections}
    RESUMED.clear()

    train(other, train__steps=3, train__resume=True)

    assert RESUMED == [2]
