"""Plugins: their hooks, loading, and the objects that they register by name."""

from agl_core.plugins.manager import PluginInfo, PluginManager, PluginState
from agl_core.plugins.registry import KINDS, Kind, Registration, Registry
from agl_core.plugins.specs import PROJECT, hookimpl, hookspec

__all__ = [
    "KINDS",
    "PROJECT",
    "Kind",
    "PluginInfo",
    "PluginManager",
    "PluginState",
    "Registration",
    "Registry",
    "hookimpl",
    "hookspec",
]
