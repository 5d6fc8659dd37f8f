"""Where plugins come from: installed entry points and local files."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from agl_core.errors import PluginConflictError, PluginError
from agl_core.plugins.registry import CORE
from agl_core.plugins.requirements import normalize
from agl_core.plugins.specs import PROJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A plugin's name and the distribution it came with, if any."""

    name: str
    distribution: str | None = None
    version: str = ""


def installed() -> dict[str, list[metadata.EntryPoint]]:
    """Entry points of group ``agl_core`` by name, in name order.

    agl-core's own plugins keep their names; others may collide among themselves.
    """
    by_name: dict[str, list[metadata.EntryPoint]] = {}
    for entry in sorted(metadata.entry_points(group=PROJECT), key=lambda entry: entry.name):
        by_name.setdefault(entry.name, []).append(entry)
    for name, entries in by_name.items():
        own = [entry for entry in entries if normalize(_distribution(entry)) == CORE]
        by_name[name] = own or entries
    return by_name


def source_of(entry: metadata.EntryPoint) -> Source:
    if entry.dist is None:
        return Source(name=entry.name)
    return Source(name=entry.name, distribution=entry.dist.name, version=entry.dist.version)


def load_entry_point(entries: Sequence[metadata.EntryPoint]) -> object:
    """Import the one plugin that claims a name; a class is instantiated.

    Raises:
        PluginConflictError: several distributions claim it.
        BaseException: whatever importing it raises.
    """
    if len(entries) > 1:
        rivals = sorted(_distribution(entry) for entry in entries)
        raise PluginConflictError(
            f"distributions {rivals} all ship a plugin named {entries[0].name!r}: "
            f"uninstall all but one"
        )
    plugin: Any = entries[0].load()
    return plugin() if inspect.isclass(plugin) else plugin


def import_file(file: Path) -> object:
    """Import a local plugin file under a name of its own.

    Raises:
        PluginError: there is no such Python file.
        BaseException: whatever running it raises.
    """
    if not file.is_file():
        raise PluginError(f"there is no file {str(file)!r}")
    digest = sha256(str(file).encode()).hexdigest()[:12]
    name = f"_agl_plugin_{file.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"{str(file)!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _distribution(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else ""
