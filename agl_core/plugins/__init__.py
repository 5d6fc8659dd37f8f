"""Plugins: their hooks, loading, and the objects that they register by name."""

from agl_core.plugins._manager import (
    PluginInfo,
    PluginManager,
    PluginState,
    Source,
    hook_names,
    installed,
    source_of,
)
from agl_core.plugins._specs import PROJECT, hookimpl, hookspec
from agl_core.plugins.registry import CORE, KINDS, Kind, Registration, Registry, unmet_extra
from agl_core.plugins.requirements import Framework, offered

__all__ = [
    "CORE",
    "KINDS",
    "PROJECT",
    "Framework",
    "Kind",
    "PluginInfo",
    "PluginManager",
    "PluginState",
    "Registration",
    "Registry",
    "Source",
    "hook_names",
    "hookimpl",
    "hookspec",
    "installed",
    "offered",
    "source_of",
    "unmet_extra",
]
