"""Wrapping of library functions, as soon as their module is imported, and restoring them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from agl_core.errors import ConfigError

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


SEND: Final = ("request", "stream", "auth", "follow_redirects")
"""Parameters of ``send`` in httpx and httpx2."""

Wrap = Callable[[Callable[..., Any], Callable[[], bool]], Callable[..., Any]]
"""Makes a wrapper from the original function; the second argument returns whether the patch is
installed."""


class Patch:
    """One wrapped function of a class.

    If another library has wrapped our wrapper in the meantime, `remove` leaves it in place, and it
    only calls the original: removing it would also remove the other library's wrapper.
    """

    def __init__(
        self,
        library: Any,
        owner: type[Any],
        name: str,
        wrap: Wrap,
        *,
        parameters: Sequence[str] | None = SEND,
    ) -> None:
        """Check the function's signature; `install` wraps it.

        Args:
            library: Module whose name and version the error states.
            owner: Class that has the function.
            name: The function's name.
            wrap: Makes the wrapper.
            parameters: Names that the wrapper uses, without ``self``; None for a wrapper that
                passes all arguments through.

        Raises:
            ConfigError: the function does not take these parameters by name.
        """
        self._owner = owner
        self._name = name
        self._original = inspect.getattr_static(owner, name)
        self._inherited = name not in vars(owner)
        self._live = False
        function = getattr(owner, name)
        if parameters is not None:
            _check_signature(library, owner, name, parameters)
        wrapper = wrap(function, lambda: self._live)
        self._wrapper = functools.wraps(function)(wrapper)

    def install(self) -> None:
        self._live = True
        setattr(self._owner, self._name, self._wrapper)

    def remove(self) -> None:
        self._live = False
        if inspect.getattr_static(self._owner, self._name) is not self._wrapper:
            return
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._original)


def _check_signature(library: Any, owner: type[Any], name: str, parameters: Sequence[str]) -> None:
    signature = inspect.signature(getattr(owner, name))
    try:
        signature.bind(None, **dict.fromkeys(parameters))
    except TypeError as error:
        raise ConfigError(
            f"{library.__name__} {getattr(library, '__version__', '?')}: {owner.__qualname__}."
            f"{name}{signature} is not the {name}(self, {', '.join(parameters)}) that agl-core wraps "
            f"({error}), so what passes it would go unrecorded: use a version of "
            f"{library.__name__} that has it, or a newer agl-core"
        ) from error
