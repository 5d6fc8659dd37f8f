"""Phases with settings of their own, on a Ray cluster: each step is that of the engine ``torch``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from agl_torch.engine import TorchEngine
from agl_torch.losses.cross_entropy import CrossEntropy as TorchCrossEntropy
from agl_torch.options import TorchOptions
from agl_verl._engine import VerlEngine
from agl_verl._loss import CrossEntropy
from agl_verl._options import VerlOptions
from safetensors.torch import load_file

from agl_core._builtin import load_plugins
from agl_core.app.parts import make_algorithm
from agl_core.config.loader import resolve
from agl_core.interfaces import AlgorithmSetup, Engine
from agl_core.types import Policy, Update
from tests.trainers.verl.test_configure import sft, train
from tests.trainers.verl.test_engine import LR, MODEL, batch_of, served_by

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # verl's and Ray's, of their own imports
]

NAME = batch_of("rloo").policy


def phases_of(engine: str) -> list[AlgorithmSetup]:
    """Imitation, then a policy gradient with a divergence, then several steps per batch."""
    algorithm = {
        "name": "rloo",
        "lr": LR / 2,
        "kl_weight": 0.5,
        "max_grad_norm": 0.2,
        "clip_high": 0.5,
        "weighting": "token",
    }
    config = resolve({"engine": engine, "algorithm": algorithm, "seed": 3})
    second = make_algorithm(config, load_plugins())[1]
    loss = {"verl": CrossEntropy, "torch": TorchCrossEntropy}[engine]
    # A step this small keeps the divergence of phase 2 below the bound at which verl cuts it off.
    first = AlgorithmSetup(name="sft", loss_factory=loss, seed=3, lr=LR / 20)
    return [first, second, replace(second, kl_weight=0.0, epochs=2, minibatches=2)]


async def trained(engine: Engine, directory: Path, setups: list[AlgorithmSetup]) -> list[Update]:
    """Train a step with each setup, as the loop does, and save the weights after each."""
    updates: list[Update] = []
    for number, setup in enumerate(setups):
        await engine.configure(setup)
        updates.append(await engine.update(batch_of("rloo", seed=number)))
        await engine.save(NAME, str(directory / str(number)))
    return updates


class TestEngine:
    pytestmark = pytest.mark.asyncio(loop_scope="class")

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    async def engine(self) -> AsyncIterator[VerlEngine]:
        first, second, _ = phases_of("verl")
        setup = replace(first, kl_weight=second.kl_weight)
        made = VerlEngine(VerlOptions(device="cpu", overlong="drop"), setup)
        await made.start([Policy(name=NAME, model=MODEL, trainable=True)])
        yield made
        await made.stop()

    async def test_each_phase_is_that_of_agl_torch(
        self, engine: VerlEngine, tmp_path: Path
    ) -> None:
        mine = await trained(engine, tmp_path / "mine", phases_of("verl"))
        await served_by(engine, NAME, str(tmp_path / "mine" / "2"))
        first, second, _ = phases_of("torch")
        setup = replace(first, kl_weight=second.kl_weight)
        other = TorchEngine(TorchOptions(device="cpu", dtype="float32", threads=1), setup)
        await other.start([Policy(name=NAME, model=MODEL, trainable=True)])
        try:
            theirs = await trained(other, tmp_path / "theirs", phases_of("torch"))
        finally:
            await other.stop()

        for ours, expected in zip(mine[:2], theirs[:2], strict=True):
            for metric in ("loss", "grad_norm"):
                assert ours.metrics[metric] == pytest.approx(
                    expected.metrics[metric], rel=1e-3, abs=1e-5
                )
        assert theirs[1].metrics["kl"] > 1e-4
        assert mine[1].metrics["kl_loss"] == pytest.approx(theirs[1].metrics["kl"], rel=1e-2)
        assert [each.metrics["optimizer_steps"] for each in mine] == [1.0, 1.0, 4.0]
        assert "kl_loss" not in mine[2].metrics
        before = load_file(Path(MODEL) / "model.safetensors")
        for number, setup in enumerate(phases_of("torch")):
            found, expected, before = self._moved(tmp_path, number, before)
            assert expected > setup.lr / 4
            assert found < setup.lr / 10

    @staticmethod
    def _moved(
        directory: Path, number: int, before: dict[str, torch.Tensor]
    ) -> tuple[float, float, dict[str, torch.Tensor]]:
        """Return how far verl's weights are from torch's, how far these moved, and these."""
        mine, theirs = (
            load_file(directory / engine / str(number) / "model.safetensors")
            for engine in ("mine", "theirs")
        )
        apart = max(_distance(mine[key], theirs[key]) for key in theirs)
        return apart, max(_distance(before[key], theirs[key]) for key in theirs), theirs

    async def test_a_checkpoint_of_another_phase_is_trained_with_the_setup_of_now(
        self, engine: VerlEngine, tmp_path: Path
    ) -> None:
        first = phases_of("verl")[0]
        await engine.configure(first)
        await engine.update(batch_of("rloo"))
        await engine.save(NAME, str(tmp_path))
        saved = await engine.fingerprint(NAME)
        await engine.configure(replace(first, lr=0))
        await engine.load(NAME, str(tmp_path), version=1)
        await engine.update(batch_of("rloo", seed=1))
        assert await engine.fingerprint(NAME) == saved


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.float() - other.float()).abs().max())


def test_a_run_imitates_and_then_learns_by_reward(tmp_path: Path) -> None:
    grpo = {"algorithm": "grpo", "steps": 2, "lr": 1e-4, "kl_weight": 0.01}
    report = train(tmp_path, [sft(tmp_path), grpo])
    assert [step.rollouts for step in report.steps] == [0, 4, 4]
    rates = [step.metrics["lr"] for step in report.steps]
    assert rates == pytest.approx([1e-3, 1e-4, 1e-4])
    assert ["kl_loss" in step.metrics for step in report.steps] == [False, True, True]
    written = report.policies["trained"]
    assert written["version"] == 3
    assert written["sha256_before"] != written["sha256_after"]
