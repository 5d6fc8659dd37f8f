"""Callbacks as soon as a module is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Imported = Callable[[ModuleType], None]


class ImportWatch(MetaPathFinder):
    """An import hook that calls back after some modules; other finders and loaders load them."""

    def __init__(self, wanted: Mapping[str, Imported]) -> None:
        """Set the callbacks; `install` activates them.

        Args:
            wanted: Callbacks by module name. Each is called after the module's code has run, or by
                `install` if the module is already imported.
        """
        self._wanted = wanted

    def install(self) -> None:
        sys.meta_path.insert(0, self)
        for name, imported in self._wanted.items():
            module = sys.modules.get(name)
            if module is not None:
                imported(module)

    def remove(self) -> None:
        with suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return another finder's spec with a loader that calls back; None for other modules."""
        imported = self._wanted.get(fullname)
        if imported is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Watched(spec.loader, imported)
                return spec
        return None


class _Watched(Loader):
    """A loader that replaces a module's own loader until the module has run."""

    def __init__(self, loader: Loader, imported: Imported) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the original loader, such as ``get_source``."""
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported(module)
