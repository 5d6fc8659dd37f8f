"""Checkpoints are whole or not there."""

from pathlib import Path

import pytest

from agl_core.errors import ConfigError, TrainingError
from agl_core.training.checkpoint import Checkpoints, CheckpointState, read_state
from agl_core.types import Policy
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
    assert checkpoints.latest(config_digest="d") is None
    for step in (1, 2, 10):
        await _save(checkpoints, engine, step)
    found = checkpoints.latest(config_digest="d")
    assert found is not None
    path, state = found
    assert (path.name, state) == ("step-000010", _state(10))
    assert (path / "policies" / "p" / "logits.json").is_file()


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
        checkpoints.latest(config_digest="else")


async def test_an_unreadable_state_says_what_to_do(tmp_path: Path, engine: BanditEngine) -> None:
    path = await _save(Checkpoints(tmp_path, keep=2), engine, 1)
    (path / "state.json").write_text("{")
    with pytest.raises(TrainingError, match="delete a broken one"):
        read_state(path)
