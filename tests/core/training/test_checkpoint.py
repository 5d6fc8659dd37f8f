"""Checkpoints are whole or not there."""

import hashlib
import math
import re
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from agl_core.config import RunConfig
from agl_core.errors import ConfigError, TrainingError
from agl_core.text import json_bytes
from agl_core.training.checkpoint import (
    Checkpoints,
    CheckpointState,
    checkpoint_of,
    config_digest,
    read_state,
    verify,
)
from agl_core.types import Estimate, Evaluation, Policy, StepReport
from tests.core.bandit_engine import BanditEngine


def _state(step: int) -> CheckpointState:
    return CheckpointState(step=step, config_digest="d", versions={"p": step}, sha256_before={})


@pytest.fixture
async def engine() -> BanditEngine:
    engine = BanditEngine()
    await engine.start([Policy(name="p", trainable=True)])
    return engine


async def _save(checkpoints: Checkpoints, engine: BanditEngine, step: int, best=None) -> Path:
    return await checkpoints.save(_state(step), engine=engine, policies=["p"], best=best)


async def test_the_newest_is_found_again(tmp_path: Path, engine: BanditEngine) -> None:
    checkpoints = Checkpoints(tmp_path, keep=5)
    assert checkpoints.latest(lambda _: "d") is None
    for step in (1, 2, 10):
        await _save(checkpoints, engine, step)
    found = checkpoints.latest(lambda _: "d")
    assert found is not None
    path, state = found
    assert (path.name, state.step, state.versions) == ("step-000010", 10, {"p": 10})
    assert (path / "policies" / "p" / "logits.json").is_file()


async def test_a_state_comes_back_whatever_its_numbers_and_texts_are(
    tmp_path: Path, engine: BanditEngine
) -> None:
    """JSON has no form for these numbers, UTF-8 none for the text."""
    wide = Estimate(mean=math.inf, low=-math.inf, high=math.inf, n=2)
    state = msgspec.structs.replace(
        _state(1),
        steps=[StepReport(step=1, steps=2, reward=math.inf, metrics={"\ud83d": -math.inf})],
        evaluations=[
            Evaluation(step=1, score=wide, channels={"$float": wide}, pass_at_k={2: wide})
        ],
        calls=10**30,
    )
    path = await Checkpoints(tmp_path, keep=1).save(state, engine=engine, policies=["p"], best=None)
    read = await verify(path)
    assert msgspec.structs.replace(read, files={}) == state


async def test_only_the_newest_and_the_best_stay(tmp_path: Path, engine: BanditEngine) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    best = await _save(checkpoints, engine, 1)
    for step in (2, 3, 4):
        await _save(checkpoints, engine, step, best)
    assert [path.name for path in checkpoints.all()] == [
        "step-000001",
        "step-000003",
        "step-000004",
    ]


async def test_a_half_written_one_does_not_count(tmp_path: Path, engine: BanditEngine) -> None:
    class Failing(BanditEngine):
        async def save(self, policy: str, directory: str, *, resumable: bool = True) -> None:
            await super().save(policy, directory, resumable=resumable)
            raise OSError("disk full")

    checkpoints = Checkpoints(tmp_path, keep=2)
    await _save(checkpoints, engine, 1)
    failing = Failing()
    await failing.start([Policy(name="p", trainable=True)])
    with pytest.raises(OSError, match="disk full"):
        await _save(checkpoints, failing, 2)
    assert [path.name for path in checkpoints.all()] == ["step-000001"]


async def test_other_settings_do_not_continue_a_run(tmp_path: Path, engine: BanditEngine) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    await _save(checkpoints, engine, 1)
    with pytest.raises(ConfigError, match="other settings"):
        checkpoints.latest(lambda _: "else")


async def test_an_unreadable_state_says_what_to_do(tmp_path: Path, engine: BanditEngine) -> None:
    path = await _save(Checkpoints(tmp_path, keep=2), engine, 1)
    (path / "state.json").write_text("{")
    with pytest.raises(TrainingError, match=r"state\.json is not as it was written"):
        read_state(path)


LOGITS = Path("policies") / "p" / "logits.json"


async def test_every_file_of_a_checkpoint_has_its_checksum(
    tmp_path: Path, engine: BanditEngine
) -> None:
    """E2: in its state; that of the state is beside it."""
    path = await _save(Checkpoints(tmp_path, keep=2), engine, 1)
    state = await verify(path)
    assert list(state.files) == [LOGITS.as_posix()]
    assert (
        state.files[LOGITS.as_posix()] == hashlib.sha256((path / LOGITS).read_bytes()).hexdigest()
    )


@pytest.mark.parametrize("file", [LOGITS, Path("state.json")], ids=str)
@pytest.mark.parametrize("harm", ["flipped bit", "truncated", "missing"])
async def test_a_damaged_file_is_named_with_the_checkpoint_before(
    tmp_path: Path, engine: BanditEngine, file: Path, harm: str
) -> None:
    """E2: one flipped bit was resumed without a word."""
    checkpoints = Checkpoints(tmp_path, keep=3)
    older = await _save(checkpoints, engine, 1)
    path = await _save(checkpoints, engine, 2)
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 1
    if harm == "missing":
        (path / file).unlink()
    else:
        (path / file).write_bytes(data if harm == "flipped bit" else data[:-1])
    with pytest.raises(TrainingError) as caught:
        await verify(path)
    assert str(path) in str(caught.value)
    assert file.name in str(caught.value)
    assert str(older) in str(caught.value)
    if file.name == "state.json":
        with pytest.raises(TrainingError, match=re.escape(str(older))):
            checkpoints.starting_point(resume=True, digest=lambda _: "d")
        assert checkpoint_of(path / LOGITS.parent) == path
    await verify(older)


@pytest.mark.parametrize("harm", ["no JSON", "no state", "no file"])
async def test_a_state_without_checksum_names_the_checkpoint_before_too(
    tmp_path: Path, engine: BanditEngine, harm: str
) -> None:
    """E2: earlier versions wrote none."""
    checkpoints = Checkpoints(tmp_path, keep=3)
    older = await _save(checkpoints, engine, 1)
    path = await _save(checkpoints, engine, 2)
    (path / "state.json.sha256").unlink()
    (path / "state.json").unlink()
    if harm == "no file":
        (path / "state.json").mkdir()
    else:
        (path / "state.json").write_text("{" if harm == "no JSON" else "{}")
    with pytest.raises(TrainingError, match=r"state\.json cannot be read") as caught:
        await verify(path)
    assert str(older) in str(caught.value)


async def test_a_run_does_not_begin_over_a_checkpoint_without_its_state(
    tmp_path: Path, engine: BanditEngine
) -> None:
    """E2: nor does it go on from an older one without a word."""
    checkpoints = Checkpoints(tmp_path, keep=3)
    path = await _save(checkpoints, engine, 1)
    (path / "state.json").unlink()
    with pytest.raises(ConfigError, match="already"):
        checkpoints.starting_point(resume=False, digest=lambda _: "d")
    with pytest.raises(TrainingError, match="there is none before it"):
        checkpoints.starting_point(resume=True, digest=lambda _: "d")


async def test_another_directory_is_no_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "step-000001"):
        with pytest.raises(TrainingError, match=r"is no checkpoint: name one such as"):
            await verify(path)


async def test_where_there_is_none_before_the_error_says_so(
    tmp_path: Path, engine: BanditEngine
) -> None:
    """E2."""
    path = await _save(Checkpoints(tmp_path, keep=3), engine, 1)
    (path / LOGITS).unlink()
    with pytest.raises(TrainingError, match="there is none before it"):
        await verify(path)


async def test_a_checkpoint_without_checksums_is_read(tmp_path: Path, engine: BanditEngine) -> None:
    """Those of earlier versions."""
    path = await _save(Checkpoints(tmp_path, keep=3), engine, 1)
    (path / "state.json.sha256").unlink()
    state = msgspec.structs.replace(read_state(path), files={})
    (path / "state.json").write_bytes(json_bytes(state, indent=2))
    (path / LOGITS).write_bytes(b"{}")
    assert (await verify(path)).step == 1


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
async def test_its_files_are_their_owners_alone(tmp_path: Path, engine: BanditEngine) -> None:
    """F2: whatever modes the engine's libraries write with."""
    path = await _save(Checkpoints(tmp_path / "new", keep=3), engine, 1)
    found = {stat.S_IMODE(each.stat().st_mode) for each in path.rglob("*") if each.is_file()}
    folders = [path.parent, path, *(each for each in path.rglob("*") if each.is_dir())]
    assert found == {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in folders} == {0o700}


def test_settings_are_the_same_in_other_folders():
    def digest(folder, **more):
        data = {"agent": f"{folder}/agent.py:run", "tasks": {"train": f"{folder}/t.jsonl"}, **more}
        return config_digest(RunConfig.model_validate(data), 0, anywhere=True)

    assert digest("/a/b") == digest("/c d/e") == digest("C:\\x")
    assert digest("/a/b") != digest("/a/b", seed=7)
    assert digest("/a", prompts={"p": "/a/ no"}) != digest("/a", prompts={"p": "/b/ no"})
