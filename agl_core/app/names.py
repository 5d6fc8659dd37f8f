"""Checks of the plugins that a configuration names, without making anything."""

from __future__ import annotations

from agl_core.app.parts import engine_name
from agl_core.config import PhaseConfig, RunConfig, check_options, validate
from agl_core.config.loader import NamesPlugin
from agl_core.config.policies import algorithm_phases, needs_tuner, prompt_phases
from agl_core.config.validation import unknown_key
from agl_core.errors import ConfigError, MissingExtraError
from agl_core.plugins import PluginManager
from agl_core.plugins.registry import Kind


def check_names(config: RunConfig, plugins: PluginManager) -> None:
    """Check every plugin that the configuration names, and its options.

    The options of a plugin whose extra is not installed are not checked, as the configuration may
    be for another machine.

    Raises:
        ConfigError: a name is unknown (the message names the nearest), or an option is wrong.
        PluginError: several plugins register the name, or its plugin is broken.
    """
    check_phases(config, plugins)
    _check_engine(config, plugins)
    check_section(config.store, plugins, "stores", where="store")
    plugins.registry("adapters").get(config.capture.adapter)
    for number, reward in enumerate(config.rewards):
        where = f"rewards.{number}"
        if ":" in reward.name:
            check_options(reward, None, where=where)
        elif plugins.registry("rewards").get(reward.name).config is not None:
            check_section(reward, plugins, "rewards", where=where)
    for number, tracker in enumerate(config.trackers):
        check_section(tracker, plugins, "trackers", where=f"trackers.{number}")
    check_sections(config, plugins)


def _check_engine(config: RunConfig, plugins: PluginManager) -> None:
    engines = plugins.registry("engines")
    try:
        name = engine_name(config, plugins)
    except MissingExtraError:  # of the algorithm, which names its engine
        return
    if config.engine.name is not None or name in engines:
        section = config.engine.model_copy(update={"name": name})
        check_section(section, plugins, "engines", where="engine")


def check_sections(config: RunConfig, plugins: PluginManager) -> None:
    """Check the sections of plugins.

    Raises:
        ConfigError: no plugin has such a section, or an option is wrong.
    """
    kinds = [plugins.registry(kind) for kind in ("observers", "layers", "admissions")]
    owners = {name: kind for kind in kinds for name in kind.names() if "." not in name}
    names = [name for name in owners if name not in RunConfig.model_fields]
    for name, options in config.sections.items():
        if name not in names:
            known = unknown_key((name,), RunConfig, also=names)
            raise ConfigError(f"Configuration: {known}")
        if model := owners[name].options_model(name):
            validate(model, options, where=name)


def check_phases(config: RunConfig, plugins: PluginManager) -> None:
    """Check the algorithms and optimisers of a run, and their options.

    The options of a plugin whose extra is not installed are not checked.

    Raises:
        ConfigError: a name is unknown (the message names the nearest), or an option is wrong.
        PluginError: several plugins register a name, or its plugin is broken.
    """
    for number, phase in algorithm_phases(config).items():
        where = f"phases.{number}" if config.phases else "algorithm"
        check_section(phase.algorithm, plugins, "algorithms", where=where)
    for number, phase in prompt_phases(config).items():
        check_section(phase, plugins, "optimizers", where=f"phases.{number}")
    for name in config.optimizers:
        plugins.registry("optimizers").get(name)
    if needs_tuner(config):
        plugins.registry("tuners").get("prompts")


def check_section(section: NamesPlugin, plugins: PluginManager, kind: Kind, *, where: str) -> None:
    """Check the plugin that a section names, and its options; see `check_phases`."""
    name = section.optimizer if isinstance(section, PhaseConfig) else section.name
    registry = plugins.registry(kind)
    registry.get(name or "")
    try:
        model = registry.options_model(name or "")
    except MissingExtraError:
        return
    check_options(section, model, where=where)
