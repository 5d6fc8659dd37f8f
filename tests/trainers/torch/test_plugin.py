"""What the package registers."""

from __future__ import annotations

import importlib

from agl_torch import plugin
from pydantic import BaseModel


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
