"""What agl-core registers, in the same way as every plugin."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from agl_core.interfaces import Register
from agl_core.plugins import PluginManager, hookimpl


def load_plugins(files: Iterable[str | Path] = ()) -> PluginManager:
    """The plugins of a run: built-ins, then installed ones in name order, then local `files`.

    Raises:
        PluginError: a local file is broken. A broken installed plugin raises when it is chosen.
    """
    manager = PluginManager()
    manager.load_builtin(sys.modules[__name__])
    manager.load_installed()
    for path in files:
        manager.load_file(path)
    return manager


@hookimpl
def agl_register_stores(register: Register) -> None:
    for name, options, summary in (
        ("sqlite", "SqliteOptions", "one file that survives a crash (the default)"),
        ("memory", "MemoryOptions", "gone when the process ends"),
    ):
        register(
            name,
            f"agl_core.store._{name}:make_store",
            config=f"agl_core.store.options:{options}",
            summary=summary,
        )


@hookimpl
def agl_register_adapters(register: Register) -> None:
    register(
        "trajectory",
        "agl_core.adapters:TrajectoryAdapter",
        summary="joins calls by id into one token path per conversation",
    )


@hookimpl
def agl_register_algorithms(register: Register) -> None:
    for name, attribute, summary in (
        ("grpo", "GRPO", "group-relative advantages, clipped token ratios"),
        ("rloo", "RLOO", "each attempt against the mean of its siblings"),
        ("reinforce", "Reinforce", "the return itself, no baseline from the group"),
    ):
        register(
            name,
            f"agl_core.training.algorithms:{attribute}",
            config=f"agl_core.training.algorithms:{attribute}Options",
            summary=summary,
        )


@hookimpl
def agl_register_commands(register: Register) -> None:
    register(
        "train", "agl_core.cli.train:command", summary="train the named agents of an agent program"
    )
