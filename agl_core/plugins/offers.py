"""What a plugin's package has for users' code: names that are imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from agl_core.errors import MissingExtraError


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework that a plugin's modules import."""

    module: str
    """Its import name."""
    needs: str
    """The requirement that brings it."""
    plugin: str
    """Whose it is, as a user knows it."""
    extra: str | None = None
    """The extra of agl-core with the requirement, where there is one."""


def offered(name: str, package: str, places: Mapping[str, str], *frameworks: Framework) -> Any:
    """Serve a package's ``__getattr__``, so that importing the package imports no framework.

    ::

        def __getattr__(name: str) -> Any:
            return offered(name, __name__, {"MyHandler": "_handler"}, Framework("mine", ...))

    Args:
        name: What is asked for.
        package: Import name of the package.
        places: By each name, the module of the package that has it.
        frameworks: Those that may be missing.

    Raises:
        AttributeError: the package offers no such name.
        MissingExtraError: a framework is not installed, or not in a version that has what is used.
        ImportError: something else could not be imported.
    """
    if name not in places:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{package}.{places[name]}"), name)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        for each in frameworks:
            if each.module == missing:
                raise MissingExtraError(each.plugin, needs=each.needs, extra=each.extra) from error
        raise
