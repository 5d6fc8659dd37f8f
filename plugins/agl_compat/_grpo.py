"""``RLConfig`` and trainers that train an `Agent` on named sets of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import agl_core
from agl_compat._agent import Agent
from agl_compat._lit import LitAgent, RolloutFunction, program_of
from agl_compat._log import TrainingLog, mask_as_asked
from agl_compat._names import renamed
from agl_compat._rates import service_settings
from agl_compat._services import bus_settings
from agl_compat._storage import LightningStore, storage_settings
from agl_compat._trainer import ADAPTER
from agl_core.app import Report, load_plugins
from agl_core.errors import ConfigError

_PROMPT_OPTIMIZER: Final = "apo"


@dataclass(slots=True, kw_only=True)
class RLConfig:
    """Settings of a training. An episode is a training step on `batch_size` tasks."""

    algorithm: str = "grpo"
    """``grpo``, ``rloo``, ``sft``, any algorithm of agl-core, or ``apo``, which tunes prompts."""
    episodes: int = 10
    """Steps; rollouts of the optimiser ``apo``."""
    learning_rate: float | None = None
    batch_size: int = 8
    group_size: int | None = None
    """Attempts per task and step."""
    model: str | None = None
    """Directory or hub name of the weights, or the address of an endpoint."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Dotted keys of a run file to values; they override all else."""

    def overrides(self) -> dict[str, Any]:
        """Return the settings of a run that trains weights."""
        given = {
            "algorithm.name": self.algorithm,
            "algorithm.lr": self.learning_rate,
            "algorithm.group_size": self.group_size,
            "train.steps": self.episodes,
            "train.tasks_per_step": self.batch_size,
        }
        return {key: value for key, value in given.items() if value is not None}


class GRPOTrainer:
    """Trains the weights or the prompt of an agent."""

    algorithm = "grpo"

    def __init__(
        self,
        config: RLConfig | Mapping[str, Any] | None = None,
        store: LightningStore | None = None,
    ) -> None:
        """Configure a trainer.

        Args:
            config: An `RLConfig` or its fields.
            store: Where records are kept.
        """
        renamed(type(self).__name__, "agl.train(run_agent, tasks, agents=[...], algorithm=...)")
        if config is None:
            config = {"algorithm": self.algorithm}
        self.config = config if isinstance(config, RLConfig) else RLConfig(**config)
        self._services = storage_settings() if store is None else store.settings()
        self._services |= {**bus_settings(), **service_settings()}
        mask_as_asked()

    def train(
        self,
        agent: Agent | Callable[..., Any] | LitAgent[Any],
        tasks: Any = None,
        *,
        eval_tasks: str | Sequence[str] | Any = None,
        reward: Any = None,
    ) -> Report:
        """Train an agent, and return the report of the run.

        Args:
            agent: An `Agent`, a function of a task, or a rollout function.
            tasks: Rows to train on; None: the split ``train`` of the named `eval_tasks`.
            eval_tasks: Names of sets, such as ``["math"]``, whose split ``val`` is evaluated; or
                held-out rows.
            reward: As of `agl_core.train`; None: the reward ``task_set`` for named sets.

        Raises:
            ConfigError: a set is unknown, or there are no tasks.
        """
        names = set_names(eval_tasks)
        if names and tasks is None:
            tasks = named_tasks(names, "train")
        name, program = _program(agent)
        settings: dict[str, Any] = {**ADAPTER, **self._services}
        if names and reward is None:
            settings["rewards"] = [{"name": "task_set"}]
        tunes = self.config.algorithm == _PROMPT_OPTIMIZER
        settings |= _of_prompt(self.config, agent) if tunes else self.config.overrides()
        return agl_core.train(
            program,
            tasks,
            agents=() if tunes else [name],
            val_tasks=named_tasks(names, "val") if names else eval_tasks,
            reward=reward,
            model=self.config.model,
            overrides={**settings, **self.config.settings},
            observers=[TrainingLog()],
        )


def _program(agent: Any) -> tuple[str, Callable[..., Any]]:
    if isinstance(agent, (LitAgent, RolloutFunction)):
        return program_of(agent)
    if not callable(agent):
        raise ConfigError(f"The agent {agent!r} cannot be called: give an Agent or a function")
    return (agent.name, agent) if isinstance(agent, Agent) else ("*", agent)


def _of_prompt(config: RLConfig, agent: Any) -> dict[str, Any]:
    if not isinstance(agent, Agent) or not agent.system_prompt:
        raise ConfigError(
            "algorithm = 'apo' tunes the system prompt of an Agent: give an Agent with "
            "system_prompt, or set prompts and phases of a run (docs/prompts.md)"
        )
    prompt = {"text": agent.system_prompt, "agents": [agent.name]}
    return {
        "prompts": {agent.prompt_name: prompt},
        "phases": [{"optimizer": _PROMPT_OPTIMIZER, "rollouts": config.episodes}],
    }


def set_names(given: Any) -> list[str]:
    """Return the names of sets in `given`; empty if it is rows, a file or a reference."""
    names: list[Any] = [given] if isinstance(given, str) else []
    if isinstance(given, (list, tuple)):
        names = [*given]
    if not names or not all(isinstance(name, str) for name in names):
        return []
    return [] if any({".", ":"} & {*name} for name in names) else names


def named_tasks(names: Sequence[str], split: Literal["train", "val"]) -> list[Any]:
    """Return the tasks of several registered sets, one after the other.

    Raises:
        ConfigError: a set is unknown.
    """
    sets = load_plugins().registry("tasks")
    return [row for name in names for row in sets.create(name, split)]
