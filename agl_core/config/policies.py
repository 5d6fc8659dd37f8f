"""The run's phases, its policies and the agents to train."""

from __future__ import annotations

import math
from typing import Any

from agl_core.config._models import AlgorithmConfig, PhaseConfig, RunConfig
from agl_core.config.validation import validate
from agl_core.errors import ConfigError
from agl_core.types import Policy, agent_matches


def trains(config: RunConfig) -> bool:
    """Return whether the run trains weights; otherwise all its phases tune prompts."""
    return not config.phases or any(phase.algorithm for phase in config.phases)


def needs_tuner(config: RunConfig) -> bool:
    """Return whether the run captures or tunes prompts."""
    return any(phase.optimizer for phase in config.phases) or any(
        prompt.captured for prompt in config.prompts.values()
    )


def algorithm_phases(config: RunConfig) -> dict[int, RunConfig]:
    """Return the configuration of each algorithm phase, by the phase's number from 0.

    In it, the phase's keys override ``[algorithm]``. The algorithm's own keys there are kept only
    if the phase has the same algorithm.

    Raises:
        ConfigError: a value is wrong, or no phase has the algorithm of an option in ``[algorithm]``.
    """
    if not config.phases:
        return {0: config}
    base, found = config.algorithm, dict[int, RunConfig]()
    if base.options and base.name not in {phase.algorithm for phase in config.phases}:
        raise ConfigError(
            f"Configuration: algorithm.{min(base.options)} is an option of {base.name!r}, which no "
            f"phase names: set it in a phase, or remove it"
        )
    for number, phase in enumerate(config.phases):
        if phase.algorithm is not None:
            given = {key: getattr(base, key) for key in type(base).model_fields}
            given |= base.options if phase.algorithm == base.name else {}
            given |= {**phase.options, "name": phase.algorithm}
            merged = validate(AlgorithmConfig, given, where=f"phases.{number}")
            found[number] = config.model_copy(update={"algorithm": merged})
    return found


def prompt_phases(config: RunConfig) -> dict[int, PhaseConfig]:
    """Return each phase with an optimiser, by the phase's number from 0.

    Its options are those of ``[optimizers.NAME]``, overridden by the phase's keys.

    Raises:
        ConfigError: a key of phases is in ``[optimizers.NAME]``.
    """
    found: dict[int, PhaseConfig] = {}
    for number, phase in enumerate(config.phases):
        if phase.optimizer is not None:
            base = config.optimizers.get(phase.optimizer, {})
            for key in sorted(base.keys() & PhaseConfig.model_fields.keys()):
                raise ConfigError(
                    f"Configuration: optimizers.{phase.optimizer}.{key} is no option of an "
                    f"optimiser: set phases.{number}.{key}"
                )
            found[number] = phase.model_copy(update={**base, **phase.options})
    return found


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
    if trains(config):
        _check_shares(policies)
    if training and trains(config):
        _check_trainable(config, policies)
    return policies


def trained_agents(config: RunConfig, policies: list[Policy]) -> list[str]:
    """Return names or globs of the agents to train: ``agents``, or those of trainable policies."""
    if not trains(config):
        return []
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
        served = [policy for policy in policies if policy.share is None]
        settings["policies"] = [
            [pattern, policy.trainable] for policy in served for pattern in policy.agents
        ]
    if config.capture.elsewhere == "refuse":
        settings["elsewhere"] = "refuse"
        settings["allow_hosts"] = list(config.capture.allow_hosts)
    return settings


def _policies(config: RunConfig) -> list[Policy]:
    named = [
        Policy(
            name=name,
            agents=tuple(section.agents),
            trainable=section.trainable and trains(config),
            train_constrained=section.train_constrained,
            model=section.model or ("" if section.base_url else config.model) or "",
            base_url=section.base_url or "",
            share=section.share,
        )
        for name, section in config.policies.items()
    ]
    if any(policy.share is None for policy in named):
        return named
    default = [policy for policy in _default(config) if policy.name not in config.policies]
    return default + named


def _default(config: RunConfig) -> list[Policy]:
    model = config.model or ""
    trained = Policy(name="trained", agents=tuple(config.agents), trainable=True, model=model)
    frozen = Policy(name="frozen", agents=("*",), model=model)
    return [trained, frozen] if config.agents and trains(config) else [frozen]


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


def _check_shares(policies: list[Policy]) -> None:
    """Check the shares for every agent that the patterns of all policies together can describe."""
    patterns = {pattern for policy in policies for pattern in policy.agents}
    shared = [policy for policy in policies if policy.share is not None]
    idle = {(policy.name, pattern) for policy in shared for pattern in policy.agents}
    for agent in sorted(patterns | {one.replace("*", two) for one in patterns for two in patterns}):
        shares = {each.name: each.share or 0.0 for each in policies if each.plays(agent)}
        if math.fsum(shares.values()) > 1:
            raise ConfigError(
                f"The shares of agent {agent!r} are above 1 in sum: {shares}. Lower one of them"
            )
        if next((each.trainable for each in policies if each.serves(agent)), False):
            idle -= {(name, pattern) for name, pattern in idle if agent_matches(pattern, agent)}
    for name, pattern in sorted(idle):
        raise ConfigError(
            f"Policy {name!r} has a share of agents that no trainable policy serves: {pattern!r}. "
            f"Name agents of a trainable policy in policies.{name}.agents"
        )


def _serving(entry: str, policies: list[Policy]) -> Policy | None:
    """Return the policy that the gateway chooses for an entry of ``agents``.

    The agents of a glob are known only during the run. So the first policy with the same glob or
    ``*`` is taken, else the first policy that matches the glob as if it were a name.
    """
    if any(mark in entry for mark in "*?["):
        for policy in policies:
            if policy.share is None and (entry in policy.agents or "*" in policy.agents):
                return policy
    return next((policy for policy in policies if policy.serves(entry)), None)
