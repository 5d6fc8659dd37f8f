"""Faces of packages, which list each name once, in the imports that type checkers and editors read.

The repeated name, ``Span as Span``, marks a name of the face::

    from agl_core.types.span import Span as Span

The names of some faces are imported on first use::

    if TYPE_CHECKING:
        from agl_core.store._base import BaseStore as BaseStore
    else:
        __getattr__, __dir__, __all__ = late(__name__)
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def late(face: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a face, as its own imports say."""
    module = sys.modules[face]
    loader: Any = module.__loader__  # any that reads the file, such as zipimport's
    source: str = loader.get_data(module.__file__).decode()
    modules: dict[str, str] = {}
    for line in source.splitlines():
        match line.split():
            case ["from", origin, "import", name, "as", public] if name == public:
                modules[name] = origin
            case _:
                pass

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(module, name, value)
        return value

    names = sorted(modules)
    return getattr_, names.copy, names
