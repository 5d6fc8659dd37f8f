"""YAML files with the sections ``agent``, ``training`` and ``environment``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, cast

from agl_compat._agent import Agent
from agl_compat._grpo import GRPOTrainer, RLConfig
from agl_compat._names import renamed
from agl_core.app import Report
from agl_core.config import load_object, read_anchored
from agl_core.errors import ConfigError

_SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("name", "type", "system_prompt", "tools", "model"),
    "training": (
        "algorithm",
        "episodes",
        "batch_size",
        "learning_rate",
        "group_size",
        "model",
        "settings",
    ),
    "environment": ("eval_tasks", "tasks", "reward"),
}
_CHAT: Final = ("chat", "agent", "assistant")
"""Types of agents that have only a system prompt and tools."""


def is_older(data: Mapping[str, Any]) -> bool:
    """Return whether a configuration has the older sections."""
    return isinstance(data.get("agent"), Mapping) or bool({"training", "environment"} & {*data})


def train_file(path: str | Path, settings: Mapping[str, Any] | None = None) -> Report:
    """Train by a file with the sections ``agent``, ``training`` and ``environment``.

    Args:
        path: A YAML, TOML or JSON file.
        settings: Dotted keys of a run file to values; they override the file.

    Raises:
        ConfigError: a section or key is unknown, or a value is wrong.
    """
    renamed("A file with agent, training and environment", "a run file: docs/configuration.md")
    file = Path(path)
    sections = _checked(read_anchored(file), str(file))
    training = sections["training"]
    environment, folder = sections["environment"], file.resolve().parent
    agent = _agent(sections["agent"], folder)
    model = training.get("model", sections["agent"].get("model"))
    more = {**training.pop("settings", {}), **(settings or {})}
    fields: dict[str, Any] = {**training, "model": model, "settings": more}
    config = RLConfig(**fields)
    reward = environment.get("reward")
    return GRPOTrainer(config).train(
        agent,
        _rows(environment.get("tasks"), folder),
        eval_tasks=environment.get("eval_tasks"),
        reward=None if reward is None else load_object(reward, base=folder),
    )


def _checked(data: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {} for name in _SECTIONS}
    for name, section in data.items():
        if name not in _SECTIONS:
            raise _unknown(where, name, [*_SECTIONS])
        if not isinstance(section, Mapping):
            raise ConfigError(f"{where}: {name} is {section!r:.80}: write it as a section of keys")
        keys = cast("Mapping[str, Any]", section)
        for key in keys:
            if key not in _SECTIONS[name]:
                raise _unknown(where, f"{name}.{key}", [f"{name}.{k}" for k in _SECTIONS[name]])
        found[name] = dict(keys)
    return found


def _unknown(where: str, key: str, known: Sequence[str]) -> ConfigError:
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return ConfigError(f"{where}: unknown key {key!r}; {hint}known: {', '.join(known)}")


def _agent(section: Mapping[str, Any], folder: Path) -> Any:
    kind, name = section.get("type", _CHAT[0]), section.get("name", "agent")
    if not isinstance(kind, str) or (":" not in kind and kind not in _CHAT):
        raise ConfigError(
            f"agent.type = {kind!r} names no program: write type: file.py:function for a program "
            f"of your own, with any framework, or type: {_CHAT[0]} for a system prompt and tools"
        )
    if ":" in kind:
        return load_object(kind, base=folder)
    tools = [load_object(str(tool), base=folder) for tool in section.get("tools", ())]
    return Agent(str(name), str(section.get("system_prompt", "")), tools)


def _rows(given: Any, folder: Path) -> Any:
    if isinstance(given, str) and ":" in given:
        return load_object(given, base=folder)
    return str(folder / given) if isinstance(given, str) and "." in given else given
