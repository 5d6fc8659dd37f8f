"""A low-rank adapter on verl's workers: what its checkpoints hold, and what is loaded from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from agl_torch.adapters import ADAPTER_FILE
from agl_torch.sources import ADAPTER
from agl_verl._engine import VerlEngine
from agl_verl._options import VerlOptions
from safetensors.torch import load_file

from agl_core.errors import ConfigError, TrainingError
from agl_core.types import Policy
from tests.trainers.verl.test_engine import MODEL, batch_of, served_by, setup_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # verl's and Ray's, of their own imports
]

RANK = 4
LORA = {"lora_rank": RANK, "lora_alpha": 2 * RANK, "target_modules": "all-linear"}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of the test's own, to change its weights."""
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


async def test_a_checkpoint_holds_the_adapter_alone_and_is_merged_to_be_served(
    model: Path, tmp_path: Path
) -> None:
    """G10: neither the weights nor the training state repeat the frozen model."""
    name = batch_of("grpo").policy
    options = VerlOptions(
        device="cpu", overlong="drop", verl={"actor_rollout_ref": {"model": LORA}}
    )
    engine = VerlEngine(options, setup_of("verl"))
    saved, whole = tmp_path / "saved", tmp_path / "whole"
    try:
        await engine.start([Policy(name=name, model=str(model), trainable=True)])
        await engine.update(batch_of("grpo"))
        await engine.save(name, str(saved))
        await engine.save(name, str(whole), resumable=False)
        trained = await engine.fingerprint(name)
        await engine.export(str(saved), str(tmp_path / "merged"))
        await served_by(engine, name, str(tmp_path / "merged"))
        await engine.update(batch_of("grpo", seed=2))
        assert await engine.fingerprint(name) != trained
        await engine.load(name, str(saved), version=7)
        assert await engine.fingerprint(name) == trained
        _change_base(saved)
        with pytest.raises(TrainingError, match=r"trained on the weights of .*sha256_of_files"):
            await engine.load(name, str(saved), version=8)
    finally:
        await engine.stop()

    assert list(saved.glob("*.safetensors")) == []
    files = [file for file in saved.rglob("*") if file.is_file()]
    assert sum(map(_size, files)) < _size(model / "model.safetensors")
    assert all("lora_" in each for each in load_file(saved / ADAPTER / ADAPTER_FILE))
    merged, expected = (
        load_file(each / "model.safetensors") for each in (tmp_path / "merged", whole)
    )
    assert all(merged[each].equal(expected[each]) for each in merged)
    base = load_file(model / "model.safetensors")
    assert any(not merged[each].float().equal(base[each].float()) for each in base)
    _serves_the_adapter_alone(saved, merged)


def _serves_the_adapter_alone(saved: Path, merged: dict[str, object]) -> None:
    """Replicas of an evaluation get a merged model; a run that begins with it is refused."""
    serving = VerlEngine(VerlOptions(device="cpu"), None)
    found = load_file(Path(serving._whole(saved)) / "model.safetensors")
    assert all(found[each].equal(merged[each]) for each in merged)


def _change_base(saved: Path) -> None:
    file = saved / ADAPTER / "base.json"
    base = json.loads(file.read_text())
    file.write_text(json.dumps({**base, "sha256_of_files": "0" * 64}))


def _size(file: Path) -> int:
    return file.stat().st_size


async def test_a_run_that_begins_with_an_adapter_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / ADAPTER).mkdir()
    (tmp_path / ADAPTER / "adapter_config.json").write_text("{}")
    engine = VerlEngine(VerlOptions(device="cpu"), None)
    with pytest.raises(ConfigError, match=r"adapter of a checkpoint .*agl\.export_weights"):
        await engine.start([Policy(name="writer", model=str(tmp_path))])
