"""Token streams: what a run writes, what is kept of it, and how it is read by call."""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from pathlib import Path

import msgspec
import pytest
from agl_streams import StreamFolder, TokenFile
from agl_streams._file import FORMAT, stream_bytes
from agl_streams._writer import LOST
from agl_testing.plugin_contract import PluginContract

from agl_core.errors import StoreError
from agl_core.plugins import hookimpl
from agl_core.types import Batch, RolloutQuery, TokenNumbers, Update
from tests.core.app.conftest import Bench
from tests.core.bandit_engine import BanditEngine


class TestPlugin(PluginContract):
    plugin = "agl_streams.plugin"


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


class Collector:
    """Keeps the batches that a run trains on, and the records of its calls."""

    def __init__(self):
        self.batches, self.calls = [], {}

    @hookimpl
    def agl_batch_built(self, batch, step):
        self.batches.append(batch)

    @hookimpl
    def agl_trajectories_built(self, record, trajectories):
        self.calls |= {call.id: (record.rollout.id, call.record) for call in record.calls}


def folder(bench):
    return StreamFolder(bench.directory / "bench")


def names(bench):
    path = bench.directory / "bench" / "tokens"
    return sorted(each.name for each in path.glob("step-*")) if path.is_dir() else []


def test_every_trained_call_is_read_with_its_exact_tokens_and_credits(bench):
    seen = Collector()
    bench.plugins.append(seen)
    bench.train()
    streams = folder(bench)
    assert list(streams.steps()) == [1, 2]
    assert [len(streams.files(step)) for step in (1, 2)] == [1, 1]
    for batch in seen.batches:
        for at, call_id in enumerate(batch.call_ids):
            rollout_id, record = seen.calls[call_id]
            (found,) = streams.call(call_id)
            (choice,) = record.choices
            assert found.ids == record.prompt_token_ids + choice.token_ids
            assert (found.step, found.policy) == (batch.step + 1, "trained")
            assert (found.rollout_id, found.agent) == (rollout_id, "writer")
            assert found.sampled_by == record.policy_version
            terms = [term for term, call in enumerate(batch.calls) if call == at]
            for name in ("advantages", "weights", "logprobs", "temperatures"):
                values = getattr(batch, name)
                assert found.columns[name].tolist() == [values[term] for term in terms]
            first = len(record.prompt_token_ids)
            assert found.places == list(range(first, first + len(choice.token_ids)))
    assert streams.call("unknown") == []


def test_a_call_is_found_without_reading_other_files_whole(bench, monkeypatch):
    seen = Collector()
    bench.plugins.append(seen)
    bench.train(train__steps=3)
    read = []
    column = TokenFile.column
    monkeypatch.setattr(
        TokenFile, "column", lambda self, name: read.append(self.path) or column(self, name)
    )
    folder(bench).call(seen.batches[1].call_ids[0])
    assert {path.parent.name for path in read} == {"step-000002"}


def test_older_steps_are_removed(bench):
    bench.train(train__steps=5, train__keep_tokens=2)
    assert names(bench) == ["step-000004", "step-000005"]


def test_zero_writes_nothing(bench):
    bench.train(train__keep_tokens=0)
    assert not (bench.directory / "bench" / "tokens").exists()


def test_files_belong_to_their_owner_alone(bench):
    bench.train()
    paths = [*(bench.directory / "bench" / "tokens").rglob("*")]
    assert paths
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths)


def test_a_resumed_run_forgets_later_steps(bench):
    bench.train(train__steps=4, train__checkpoint_every=2)
    newest = bench.directory / "bench" / "checkpoints" / "step-000004"
    for file in sorted(newest.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    newest.rmdir()
    kept = {path.name: path.stat().st_ino for path in bench.directory.glob("bench/tokens/step-*")}
    bench.train(train__steps=3, train__checkpoint_every=2, train__resume=True)
    assert names(bench) == ["step-000001", "step-000002", "step-000003"]
    now = {path.name: path.stat().st_ino for path in bench.directory.glob("bench/tokens/step-*")}
    assert now["step-000002"] == kept["step-000002"]


@pytest.mark.parametrize("keep", [0, 10])
def test_a_run_that_begins_again_forgets_all(bench, keep):
    stale = bench.directory / "bench" / "tokens" / "step-000007"
    stale.mkdir(parents=True)
    (stale / "trained.tokens").write_bytes(b"of another try")
    bench.train(train__keep_tokens=keep)
    assert names(bench) == (["step-000001", "step-000002"] if keep else [])


def test_a_failure_to_write_is_counted_and_logged_once(bench, caplog):
    (bench.directory / "bench").mkdir()
    (bench.directory / "bench" / "tokens").write_text("a file where the folder would be")
    with caplog.at_level(logging.WARNING, logger="agl_streams"):
        report = bench.train(train__steps=3)
    assert [step.lost.get(LOST) for step in report.steps] == [1, 1, 1]
    assert report.lost[LOST] == 3
    assert len([r for r in caplog.records if "Token streams" in r.getMessage()]) == 1


def test_two_runs_in_one_process_write_apart(tmp_path):
    benches = [Bench(tmp_path / name) for name in ("a", "b")]
    for each in benches:
        each.directory.mkdir()

    async def both():
        await asyncio.gather(*(each.app(seed=n).train() for n, each in enumerate(benches)))

    asyncio.run(both())
    for each in benches:
        ids = {
            call for step in (1, 2) for f in folder(each).files(step) for call in f.header.call_ids
        }
        assert len(ids) == 16


def test_the_tokenizer_of_each_policy_is_copied(bench, tmp_path):
    model = tmp_path / "weights"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    bench.sections = {
        "model": None,
        "policies": {
            "w": {"agents": ["writer"], "model": str(model), "trainable": True},
            "p": {"agents": ["*"], "model": "bandit"},
        },
    }
    bench.train()
    assert folder(bench).tokenizer("w") == bench.directory / "bench/tokens/tokenizer/w.json"
    assert folder(bench).tokenizer("w").read_text() == "{}"
    assert folder(bench).tokenizer("p") is None


def test_the_tokenizer_of_a_hub_model_comes_from_a_checkpoint(bench, monkeypatch):
    save = BanditEngine.save

    async def saved(self, policy, directory, *, resumable=True):
        await save(self, policy, directory, resumable=resumable)
        (Path(directory) / "tokenizer.json").write_text("{}")

    monkeypatch.setattr(BanditEngine, "save", saved)
    bench.train()
    assert folder(bench).tokenizer("trained") == (
        bench.directory / "bench/tokens/tokenizer/trained.json"
    )


def test_the_numbers_of_an_engine_are_kept(bench, monkeypatch):
    update = BanditEngine.update

    async def updated(self, batch):
        size = len(batch.targets)
        numbers = TokenNumbers(
            entropies=array("d", [0.5] * size),
            before=array("d", [-1.0] * (size - 1) + [math.nan]),
            after=array("d", [math.nan] * size),
        )
        return msgspec.structs.replace(await update(self, batch), tokens=numbers)

    monkeypatch.setattr(BanditEngine, "update", updated)
    bench.train()
    (file,) = folder(bench).files(1)
    assert file.header.numbers() == ["entropies", "before"]
    last = file.choice(len(file.header.call_ids) - 1)
    assert last.columns["entropies"].tolist() == [0.5] * len(last.places)
    assert math.isnan(last.columns["before"][-1])


def small_batch(**fields):
    """Two choices of one call, whose terms are not in the order of calls."""
    given = {
        "policy": "p",
        "step": 0,
        "tokens": array("i", [1, 2, 3, 4]),
        "parents": array("i", [-1, 0, 1, 1]),
        "positions": array("i", [0, 1, 2, 2]),
        "nodes": array("i", [1, 1, 2, 3]),
        "targets": array("i", [3, 4, 8, 9]),
        "advantages": array("f", [1, -1, 1, -1]),
        "weights": array("f", [1] * 4),
        "logprobs": array("f", [-0.5, -1, -1.5, -2]),
        "temperatures": array("f", [1] * 4),
        "calls": array("i", [0, 1, 0, 1]),
        "call_ids": ("c", "c"),
        "versions": (0, 0),
        "agents": ("a", "a"),
        "groups": array("i", [0, 0]),
    }
    return Batch(**{**given, **fields})


def written(tmp_path, content):
    path = tmp_path / "tokens" / "step-000001" / "p.tokens"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def content(**fields):
    return stream_bytes(small_batch(**fields), Update(policy="p", step=0, version=1), ["r", "r"])


def test_terms_in_any_order_are_read_by_choice(tmp_path):
    file = TokenFile(written(tmp_path, content()))
    first, second = file.call("c")
    assert (first.ids.tolist(), first.places) == ([1, 2, 3, 8], [2, 3])
    assert (second.ids.tolist(), second.places) == ([1, 2, 4, 9], [2, 3])
    assert second.columns["logprobs"].tolist() == [-1, -2]


def test_damaged_files_are_named_and_left_out_of_the_folder(tmp_path):
    whole = content()
    for broken in (
        b"",
        whole[:20],
        b"XXXX" + whole[4:],
        whole.replace(b"format\x01", b"format\x02"),
    ):
        path = written(tmp_path, broken)
        with pytest.raises(StoreError, match="Token stream"):
            TokenFile(path)
        assert StreamFolder(tmp_path).files(1) == []
    path = written(tmp_path, whole[:-4])
    with pytest.raises(StoreError, match="ends too early"):
        TokenFile(path).choice(0)
    assert FORMAT == 1


def test_a_folder_that_is_not_there_has_no_steps(tmp_path):
    streams = StreamFolder(tmp_path / "none")
    assert streams.steps() == {}
    assert streams.call("c") == []
    assert streams.tokenizer("p", "hub/name") is None


async def test_a_store_of_the_run_knows_the_rollouts(bench):
    """The rollout's step leads to the file of its calls."""
    seen = Collector()
    bench.plugins.append(seen)
    app = bench.app(store__name="sqlite")
    await app.train()
    from agl_core.store import SqliteStore

    store = SqliteStore(bench.directory / "bench" / "store.db")
    await store.open()
    rollouts = {each.id: each for each in await store.rollouts(RolloutQuery())}
    await store.close()
    for batch in seen.batches:
        for call_id in batch.call_ids:
            (found,) = folder(bench).call(call_id)
            assert rollouts[found.rollout_id].step + 1 == found.step
