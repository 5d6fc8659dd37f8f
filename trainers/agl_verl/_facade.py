"""Training with verl from Python code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from agl_core.app import Report, check_sections, load_plugins, train
from agl_core.config import RunConfig, read_anchored, resolve, with_sections
from agl_core.errors import ConfigError
from agl_core.interfaces import Observer, RewardFunction

__all__ = ["VerlTrainer"]

_NAME: Final = "verl"
"""Name of both the engine and the algorithm."""


class VerlTrainer:
    """`agl_core.train` with engine ``verl`` and, by default, algorithm ``verl``.

    ::

        trainer = VerlTrainer({"model": "Qwen/Qwen3-0.6B", "agents": ["writer"]})
        report = trainer.train(run_agent, "train.jsonl", reward=reward)
    """

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any] | str | Path | None = None,
        *,
        observers: Sequence[Observer] = (),
    ) -> None:
        """Check the configuration, without starting anything or importing verl.

        Args:
            config: A run's configuration, as a file, a mapping or a `RunConfig`. Of a `RunConfig`,
                only explicitly set fields are used.
            observers: Called at every step and evaluation.

        Raises:
            ConfigError: a key or value is invalid, or the configuration names another engine.
        """
        self._data = _with_verl(_plain(config))
        self._observers = observers
        self.config = resolve(self._data)
        check_sections(self.config, load_plugins(self.config.plugins))

    def train(
        self,
        agent: Callable[..., Any] | None = None,
        tasks: Any = None,
        *,
        val_tasks: Any = None,
        reward: RewardFunction | Mapping[str, Callable[..., Any]] | None = None,
    ) -> Report:
        """Train as `agl_core.train` does; arguments override the configuration."""
        return train(
            agent,
            tasks,
            val_tasks=val_tasks,
            reward=reward,
            config=self._data,
            observers=self._observers,
        )


def _plain(config: RunConfig | Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, RunConfig):
        return config.model_dump(mode="json", exclude_unset=True)
    if isinstance(config, Mapping):
        return deepcopy(dict(config))
    return read_anchored(config)


def _with_verl(given: Mapping[str, Any]) -> dict[str, Any]:
    data = with_sections(given)
    engine, algorithm = data.get("engine"), data.get("algorithm")
    if isinstance(engine, Mapping) and engine.get("name") not in (None, _NAME):
        raise ConfigError(
            f"VerlTrainer trains with engine 'verl', but the run names {engine['name']!r}: leave "
            f"engine.name out, or call agl_core.train"
        )
    for key, section in (("engine", engine), ("algorithm", algorithm)):
        if section is None:
            data[key] = {"name": _NAME}
        elif isinstance(section, Mapping) and section.get("name") is None:
            data[key] = {**section, "name": _NAME}
    return data
