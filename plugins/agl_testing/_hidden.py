"""Imports an integration in a process in which its framework cannot be found.

Run as ``python -m agl_testing._hidden PACKAGE FRAMEWORK...``; writes the exceptions.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from agl_core.errors import MissingExtraError
from agl_core.plugins import PluginManager, Source


class _Hiding:
    """A module finder that does not find the frameworks."""

    def __init__(self, finder: Any, hidden: frozenset[str]) -> None:
        self._finder = finder
        self._hidden = hidden

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self._hidden:
            return None
        return self._finder.find_spec(name, path, target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def main(arguments: Sequence[str]) -> int:
    """Import the package, then use each exported name: each must raise an error with a pip line."""
    package, hidden = arguments[0], frozenset(arguments[1:])
    sys.meta_path[:] = [_Hiding(finder, hidden) for finder in sys.meta_path]
    module = importlib.import_module(package)
    plugin = importlib.import_module(f"{package}.plugin")
    manager = PluginManager(environ={})
    manager.register(plugin, Source(name=package, distribution=None))
    registry = manager.registry("integrations")
    uses = [lambda name=name: registry.create(name) for name in registry.names()]
    public: Sequence[str] = getattr(module, "__all__", ())
    uses += [lambda name=name: getattr(module, name) for name in public]
    if not registry.names():
        raise AssertionError(f"{package}.plugin registers no integration")
    for use in uses:
        sys.stdout.write(f"{_refusal(use)}\n")
    return 0


def _refusal(use: Callable[[], Any]) -> MissingExtraError:
    try:
        found = use()
    except MissingExtraError as error:
        return error
    raise AssertionError(f"{found!r} can be had without its framework")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
