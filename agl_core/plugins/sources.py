"""Where plugins come from: the entry points of installed distributions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from packaging.utils import canonicalize_name

from agl_core.errors import PluginConflictError
from agl_core.plugins.registry import CORE
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
        own = [entry for entry in entries if canonicalize_name(_distribution(entry)) == CORE]
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


def _distribution(entry: metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else ""
