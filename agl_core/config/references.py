"""Import of objects and files that a configuration names."""

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
    """Return the object of a reference, ``module:attribute`` or ``file.py:attribute``.

    Args:
        reference: The attribute may contain dots.
        base: Folder of relative files; None for the working directory.

    Raises:
        ConfigError: the reference is malformed, or the file, module or attribute does not exist.
            Errors of the imported module are not caught.
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
    """Import a Python file; a repeated call returns the same module.

    Its folder comes first on ``sys.path``, as for a script, so that it can import modules of the
    same folder. After an error, ``sys.modules`` and ``sys.path`` are as before.

    Args:
        path: Absolute, or relative to the working directory.
        what: Beginning of error messages.

    Raises:
        ConfigError: the file does not exist, or is not a Python file.
        BaseException: an error of the file's code.
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
    """Read a UTF-8 file, with or without byte-order mark, in any locale.

    Raises:
        ConfigError: the file cannot be read, or is not UTF-8.
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
