"""From the configuration's ``rewards`` to functions."""

from __future__ import annotations

from collections.abc import Sequence

from agl_core.config import RewardConfig
from agl_core.config.loader import check_options
from agl_core.config.references import load_object
from agl_core.errors import ConfigError
from agl_core.interfaces import RewardFunction
from agl_core.plugins import Registry
from agl_core.rewards.scorer import NamedReward


def build_rewards(sections: Sequence[RewardConfig], registry: Registry) -> list[NamedReward]:
    """Make the rewards that a configuration names.

    A name with a colon is a reference to the user's own function, any other a registered reward.
    Rewards of one name are told apart by their channel, then by their number.

    Raises:
        ConfigError: a name, an option or a reference is wrong.
        PluginError: a reward's plugin is broken or lacks its framework.
    """
    named: list[NamedReward] = []
    for index, section in enumerate(sections):
        name = section.name.rpartition(":")[2]
        taken = {reward.name for reward in named}
        for candidate in (name, f"{name}[{section.channel}]", f"{name}[{index}]"):
            if candidate not in taken:
                name = candidate
                break
        function = _function(section, registry, f"rewards.{index}")
        named.append(NamedReward(name=name, function=function, channel=section.channel))
    return named


def _function(section: RewardConfig, registry: Registry, where: str) -> RewardFunction:
    if ":" in section.name:
        check_options(section, None, where=where)
        return load_object(section.name)
    model = registry.options_model(section.name)
    if model is None:
        try:
            return registry.create(section.name, **section.options)
        except TypeError as error:
            raise ConfigError(
                f"Configuration: {where} ({section.name}) does not take "
                f"{sorted(section.options)}: {error}"
            ) from error
    options = check_options(section, model, where=where)
    given = options.model_dump(by_alias=True, exclude_unset=True)
    return registry.create(section.name, **given)
