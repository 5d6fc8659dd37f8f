"""What the package registers."""

from __future__ import annotations

import pytest
from agl_testing.plugin_contract import PluginContract

from agl_core._builtin import load_plugins
from agl_core.app.parts import engine_name, make_algorithm
from agl_core.config.loader import resolve
from agl_core.errors import ConfigError


class TestPlugin(PluginContract):
    plugin = "agl_verl.plugin"
    frameworks = ("verl", "ray", "torch", "tensordict", "transformers", "hydra", "omegaconf")


def test_the_algorithm_asks_for_the_engine() -> None:
    assert engine_name(resolve({"algorithm": "verl"}), load_plugins()) == "verl"


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        ({"name": "grpo"}, "vanilla"),
        ({"name": "grpo", "ratio": "sequence"}, "gspo"),
        ({"name": "rloo"}, "vanilla"),
        ({"name": "reinforce"}, "vanilla"),
        ({"name": "verl", "policy_loss": "cispo"}, "cispo"),
    ],
)
def test_every_algorithm_finds_its_loss(algorithm: dict[str, str], loss: str) -> None:
    config = resolve({"engine": "verl", "algorithm": algorithm})
    _, setup = make_algorithm(config, load_plugins())
    assert setup.loss_factory().actor["policy_loss"]["loss_mode"] == loss


def test_options_that_the_loss_does_not_read_are_refused() -> None:
    config = resolve({"algorithm": {"name": "verl", "policy_loss": "gpg", "clip_low": 0.1}})
    with pytest.raises(ConfigError, match="does not read clip_low"):
        make_algorithm(config, load_plugins())
