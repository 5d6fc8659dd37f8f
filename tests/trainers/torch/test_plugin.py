"""What the package registers."""

from __future__ import annotations

import pytest
from agl_testing.plugin_contract import PluginContract
from agl_torch import plugin

from agl_core.app.parts import make_algorithm, make_engine
from agl_core.config import RunConfig
from agl_core.errors import ConfigError
from agl_core.plugins import PluginManager
from agl_core.types import Policy


class TestPlugin(PluginContract):
    plugin = "agl_torch.plugin"
    frameworks = ("torch", "transformers", "peft", "safetensors", "numpy", "aiohttp")


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """The package's own plugin, and one with a loss and algorithms that want losses."""
    source = tmp_path / "agl_test_mine.py"
    source.write_text(
        "from agl_core.plugins import hookimpl\n"
        "from agl_torch.losses import LossOutput\n"
        "class Mine:\n"
        "    def __call__(self, terms):\n"
        "        return LossOutput(losses=-3 * terms.logprobs, means={'mine': terms.weights})\n"
        "class Algorithm:\n"
        "    loss, loss_options = 'mine', {}\n"
        "    def __init__(self, options):\n"
        "        pass\n"
        "class Elsewhere(Algorithm):\n"
        "    loss = 'nope'\n"
        "class Misspelt(Algorithm):\n"
        "    loss, loss_options = 'policy_gradient', {'clip_hi': 1}\n"
        "class Wrong(Algorithm):\n"
        "    loss, loss_options = 'policy_gradient', {'ratio': 'word'}\n"
        "class Talkative(Algorithm):\n"
        "    loss_options = {'strength': 1}\n"
        "@hookimpl\n"
        "def agl_register_losses(register):\n"
        "    register('torch.mine', 'agl_test_mine:Mine')\n"
        "@hookimpl\n"
        "def agl_register_algorithms(register):\n"
        "    for kind in (Algorithm, Elsewhere, Misspelt, Wrong, Talkative):\n"
        "        register(kind.__name__.lower(), f'agl_test_mine:{kind.__name__}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins = PluginManager(environ={})
    plugins.load_builtin(plugin)
    plugins.load_file(source)
    return plugins


def engine_for(algorithm, plugins):
    config = RunConfig.model_validate(
        {"engine": {"name": "torch", "device": "cpu"}, "algorithm": {"name": algorithm}}
    )
    _, setup = make_algorithm(config, plugins)
    return make_engine(config, plugins, setup)


async def test_another_plugins_loss_reaches_the_engine(plugins, model_path, sampled, make_batch):
    engine = engine_for("algorithm", plugins)
    await engine.start([Policy(name="p", model=model_path, trainable=True)])
    try:
        update = await engine.update(make_batch([sampled([1], [2], [-1.0])]))
    finally:
        await engine.stop()
    assert update.metrics["mine"] == 1.0


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("elsewhere", r"no loss 'nope'.*torch\.mine.*torch\.policy_gradient"),
        ("misspelt", "clip_hi"),
        ("wrong", "ratio"),
        ("talkative", r"'torch\.mine' takes no options.*'talkative'.*strength"),
    ],
)
def test_a_loss_that_cannot_be_made_is_named(plugins, algorithm, message):
    with pytest.raises(ConfigError, match=message):
        engine_for(algorithm, plugins)
