"""Check the plugins that a configuration names, without making any of them."""

from __future__ import annotations

from agl_core.app.parts import engine_name
from agl_core.config import RunConfig
from agl_core.config.loader import NamesPlugin, check_options
from agl_core.errors import MissingExtraError
from agl_core.plugins import PluginManager
from agl_core.plugins.registry import Registry


def check_names(config: RunConfig, plugins: PluginManager) -> None:
    """Check every plugin that the configuration names, and its options.

    A plugin that is known but whose extra is not installed passes with its options unread: the
    configuration may be that of another machine.

    Raises:
        ConfigError: a name is unknown (names the nearest), or an option is wrong.
        PluginError: several plugins offer the name, or the one that does is broken.
    """
    _check(config.algorithm, plugins.registry("algorithms"), config.algorithm.name, "algorithm")
    _check_engine(config, plugins)
    _check(config.store, plugins.registry("stores"), config.store.name, "store")
    plugins.registry("adapters").get(config.capture.adapter)
    for number, reward in enumerate(config.rewards):
        where = f"rewards.{number}"
        if ":" in reward.name:
            check_options(reward, None, where=where)
        elif plugins.registry("rewards").get(reward.name).config is not None:
            _check(reward, plugins.registry("rewards"), reward.name, where)
    for number, tracker in enumerate(config.trackers):
        _check(tracker, plugins.registry("trackers"), tracker.name, f"trackers.{number}")


def _check_engine(config: RunConfig, plugins: PluginManager) -> None:
    engines = plugins.registry("engines")
    try:
        name = engine_name(config, plugins)
    except MissingExtraError:  # of the algorithm, which names its engine
        return
    if config.engine.name is not None or name in engines:
        _check(config.engine, engines, name, "engine")


def _check(section: NamesPlugin, registry: Registry, name: str, where: str) -> None:
    registry.get(name)
    try:
        model = registry.options_model(name)
    except MissingExtraError:
        return
    check_options(section, model, where=where)
