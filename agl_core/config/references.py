"""Turn what a configuration names into objects, and files into text."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from agl_core.errors import ConfigError


def load_object(reference: str, *, base: Path | None = None) -> Any:
    """The object that ``module:attribute`` or ``file.py:attribute`` names.

    Args:
        reference: Attributes may be dotted.
        base: Folder that relative files are looked up in; the working directory when None.

    Raises:
        ConfigError: the reference is malformed, or there is no such file, module or attribute.
            What a module raises while it is imported is not caught.
    """
    location, separator, attribute = reference.rpartition(":")
    if not (separator and location and attribute.replace(".", "").isidentifier()):
        raise ConfigError(
            f"{reference!r} names no object: write 'module:attribute' or 'file.py:attribute'"
        )
    if location.endswith(".py"):
        file = (base or Path()) / Path(location).expanduser()
        module = import_file(file, what=repr(reference))
    else:
        module = _import_module(location, reference)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = sorted(name for name in vars(module) if not name.startswith("_"))
            raise ConfigError(
                f"{reference!r}: {location!r} has no attribute {attribute!r}; "
                f"it has {', '.join(public) or 'nothing public'}"
            )
        found = getattr(found, part)
    return found


def import_file(path: Path, *, what: str) -> ModuleType:
    """Import a Python file, once however often it is named.

    Its folder comes first on ``sys.path``, as if it had been run, so that it finds the modules
    beside it. A file that fails leaves no trace.

    Args:
        path: Relative ones count from the working directory.
        what: Begins the message of an error.

    Raises:
        ConfigError: there is no such file, or it is no Python file.
        BaseException: what running it raises.
    """
    file = path.resolve()
    if not file.is_file():
        raise ConfigError(f"{what}: there is no file {str(file)!r}")
    digest = sha256(str(file).encode()).hexdigest()[:12]
    name = f"_agl_file_{file.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{what}: {str(file)!r} is no Python file")
    search_path = list(sys.path)
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        sys.path[:] = search_path
        raise
    return module


def read_text(path: Path, *, what: str) -> str:
    """Text of a UTF-8 file, with or without byte-order mark, in any locale.

    Raises:
        ConfigError: there is no such file, or it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{what}: cannot read {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{what}: {str(path)!r} is not UTF-8 (byte {error.start}): save it as UTF-8"
        ) from error


def _import_module(name: str, reference: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(
            f"{reference!r}: there is no module {error.name!r}; is it installed, or is its folder "
            f"the working directory?"
        ) from error
