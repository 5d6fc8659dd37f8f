"""The run's policies and the agents to train."""

from __future__ import annotations

from typing import Any

from agl_core.config.models import RunConfig
from agl_core.errors import ConfigError
from agl_core.types import Policy


def resolve_policies(config: RunConfig, *, training: bool) -> list[Policy]:
    """Return the run's policies in the order in which they are matched with an agent's name.

    Without ``policies``, a policy ``trained`` serves the agents to train and a policy ``frozen``
    all others, both with ``model``.

    Args:
        config: The run's configuration.
        training: False for a run that only serves and needs no trainable policy.

    Raises:
        ConfigError: a policy has no model, no policy is trainable, or a frozen policy serves an
            agent to train.
    """
    policies = _policies(config)
    for policy in policies:
        if not policy.model:
            raise ConfigError(
                f"Policy {policy.name!r} has no model: set policies.{policy.name}.model, or model"
            )
    if training:
        _check_trainable(config, policies)
    return policies


def trained_agents(config: RunConfig, policies: list[Policy]) -> list[str]:
    """Return names or globs of the agents to train: ``agents``, or those of trainable policies."""
    if config.agents:
        return list(config.agents)
    return [agent for policy in policies if policy.trainable for agent in policy.agents]


def capture_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of capture for attempts in any process; `Rollout.trains` reads them."""
    policies = _policies(config)
    agents = trained_agents(config, policies)
    settings: dict[str, Any] = {}
    if agents:
        settings["agents"] = agents
        settings["policies"] = [
            [pattern, policy.trainable] for policy in policies for pattern in policy.agents
        ]
    if config.capture.elsewhere == "refuse":
        settings["elsewhere"] = "refuse"
        settings["allow_hosts"] = list(config.capture.allow_hosts)
    return settings


def _policies(config: RunConfig) -> list[Policy]:
    if not config.policies:
        return _default(config)
    return [
        Policy(
            name=name,
            agents=tuple(section.agents),
            trainable=section.trainable,
            train_constrained=section.train_constrained,
            model=section.model or config.model or "",
        )
        for name, section in config.policies.items()
    ]


def _default(config: RunConfig) -> list[Policy]:
    model = config.model or ""
    trained = Policy(name="trained", agents=tuple(config.agents), trainable=True, model=model)
    frozen = Policy(name="frozen", agents=("*",), model=model)
    return [trained, frozen] if config.agents else [frozen]


def _check_trainable(config: RunConfig, policies: list[Policy]) -> None:
    if not any(policy.trainable for policy in policies):
        raise ConfigError(
            "Nothing would be trained: name the agents to train in 'agents', or set "
            "policies.<name>.trainable = true"
        )
    for agent in config.agents:
        serving = _serving(agent, policies)
        if serving is not None and not serving.trainable:
            raise ConfigError(
                f"Agent {agent!r} is to be trained, but policy {serving.name!r} that serves it is "
                f"frozen: set policies.{serving.name}.trainable = true, or take it out of 'agents'"
            )


def _serving(entry: str, policies: list[Policy]) -> Policy | None:
    """Return the policy that the gateway chooses for an entry of ``agents``.

    The agents of a glob are known only during the run. So the first policy with the same glob or
    ``*`` is taken, else the first policy that matches the glob as if it were a name.
    """
    if any(mark in entry for mark in "*?["):
        for policy in policies:
            if entry in policy.agents or "*" in policy.agents:
                return policy
    return next((policy for policy in policies if policy.serves(entry)), None)
