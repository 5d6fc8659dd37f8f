"""What the package registers."""

from __future__ import annotations

import importlib

import pytest
from agl_torch import plugin
from pydantic import BaseModel

from agl_core.app.parts import make_engine
from agl_core.config import RunConfig
from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from agl_core.plugins import PluginManager
from agl_core.types import Policy


def registered(hook):
    found = {}

    def register(name, target, *, extra=None, config=None, summary=""):
        found[name] = (target, extra, config, summary)

    hook(register)
    return found


def load(target):
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def test_everything_registered_exists():
    engines = registered(plugin.agl_register_engines)
    losses = registered(plugin.agl_register_losses)
    assert set(engines) == {"torch"}
    assert set(losses) == {"torch.policy_gradient", "torch.cross_entropy"}
    for target, extra, config, summary in [*engines.values(), *losses.values()]:
        assert callable(load(target))
        assert issubclass(load(config), BaseModel)
        assert extra == "torch"
        assert summary


async def test_another_plugins_loss_reaches_the_engine(
    tmp_path, model_path, sampled, make_batch, monkeypatch
):
    source = tmp_path / "agl_test_mine.py"
    source.write_text(
        "from agl_core.plugins import hookimpl\n"
        "from agl_torch.losses import LossOutput\n"
        "class Mine:\n"
        "    def __call__(self, terms):\n"
        "        return LossOutput(losses=-3 * terms.logprobs, means={'mine': terms.weights})\n"
        "@hookimpl\n"
        "def agl_register_losses(register):\n"
        "    register('torch.mine', 'agl_test_mine:Mine')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins = PluginManager(environ={})
    plugins.load_builtin(plugin)
    plugins.load_file(source)
    config = RunConfig.model_validate({"engine": {"name": "torch", "device": "cpu"}})
    engine = make_engine(config, plugins, AlgorithmSetup(name="x", loss="mine"))
    await engine.start([Policy(name="p", model=model_path, trainable=True)])
    try:
        update = await engine.update(make_batch([sampled([1], [2], [-1.0])]))
    finally:
        await engine.stop()
    assert update.metrics["mine"] == 1.0
    with pytest.raises(ConfigError, match=r"no loss 'nope'.*torch\.mine"):
        make_engine(config, plugins, AlgorithmSetup(name="x", loss="nope"))
    wrong = AlgorithmSetup(name="x", loss="policy_gradient", loss_options={"clip_hi": 1})
    with pytest.raises(ConfigError, match="clip_hi"):
        make_engine(config, plugins, wrong)
