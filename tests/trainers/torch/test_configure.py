"""Another setup between phases: what changes, and what stays."""

from dataclasses import replace

import pytest
from agl_torch.engine import TorchEngine
from agl_torch.losses.cross_entropy import CrossEntropy
from agl_torch.losses.policy_gradient import ClipOptions, PolicyGradient
from agl_torch.options import TorchOptions

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from agl_core.types import Policy

SETUP = AlgorithmSetup(name="sft", loss_factory=CrossEntropy, lr=1e-2)


@pytest.fixture
def policy(model_path):
    return Policy(name="p", model=model_path, trainable=True)


async def test_loss_rate_and_divergence_follow_the_setup(run_engine, policy, sampled, make_batch):
    batch = make_batch([sampled([257, 64, 258], [70] * 4, [0.0] * 4)])
    async with run_engine([policy], replace(SETUP, kl_weight=0.1)) as engine:
        await engine.configure(SETUP)
        assert "kl" not in (await engine.update(batch)).metrics
        other = AlgorithmSetup(
            name="grpo",
            loss_factory=lambda: PolicyGradient(ClipOptions()),
            lr=0,
            kl_weight=0.1,
        )
        await engine.configure(other)
        before = await engine.fingerprint("p")
        metrics = (await engine.update(batch)).metrics
        assert metrics["kl"] > 0
        assert "clip_fraction" in metrics
        assert await engine.fingerprint("p") == before


async def test_weight_decay_follows_the_setup_and_stays_off_vectors(run_engine, policy):
    async with run_engine([policy], SETUP) as engine:
        await engine.configure(replace(SETUP, weight_decay=0.1, lr=3e-3))
        groups = engine._trainers["p"]._optimizer.param_groups
        assert {group["lr"] for group in groups} == {3e-3}
        assert [group["weight_decay"] for group in groups] == [
            0.1 if group["params"][0].ndim > 1 else 0.0 for group in groups
        ]


async def test_a_divergence_needs_the_weights_of_the_start(run_engine, policy):
    async with run_engine([policy], SETUP) as engine:
        with pytest.raises(ConfigError, match="initial weights were not kept"):
            await engine.configure(replace(SETUP, kl_weight=0.1))


def test_a_loss_of_a_later_phase_is_checked_before_the_start():
    def refuse():
        raise ConfigError("no such loss")

    engine = TorchEngine(TorchOptions(device="cpu"), SETUP)
    engine.check_setup(SETUP)
    with pytest.raises(ConfigError, match="no such loss"):
        engine.check_setup(replace(SETUP, loss_factory=refuse))
