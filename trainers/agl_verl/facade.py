"""The trainer as an object, for programs that are no run file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from agl_core.app import Report, train
from agl_core.config import RunConfig
from agl_core.config.loader import read_anchored, resolve
from agl_core.config.models import with_sections
from agl_core.errors import ConfigError
from agl_core.interfaces import Observer, RewardFunction

__all__ = ["VerlTrainer"]

_NAME: Final = "verl"
"""Of the engine and of the algorithm."""


class VerlTrainer:
    """`agl_core.train` with verl: its engine, and its algorithm where the run names no other.

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
        """Check the configuration; nothing is started, and verl need not be there yet.

        Args:
            config: A run's configuration, as a file, a mapping or a `RunConfig`. Of the last, what
                was set counts, not what has a default.
            observers: Called at every step and evaluation.

        Raises:
            ConfigError: a key or value is wrong, or the run names another engine.
        """
        self._data = _with_verl(_plain(config))
        self._observers = observers
        self.config = resolve(self._data)

    def train(
        self,
        agent: Callable[..., Any] | None = None,
        tasks: Any = None,
        *,
        val_tasks: Any = None,
        reward: RewardFunction | Mapping[str, Callable[..., Any]] | None = None,
    ) -> Report:
        """Train; arguments and errors as of `agl_core.train`, over what the configuration says."""
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
