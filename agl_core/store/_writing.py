"""Atomic writes of files."""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from agl_core.errors import ConfigError

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def whole_file(target: str | Path, *, what: str = "File") -> Generator[BinaryIO, None, None]:
    """Write a file and create its folder; a failure leaves an existing file unchanged.

    For a symbolic link, the file that it points to is written. A target that is not a regular file,
    such as a pipe or a device, is written directly, not atomically.

    Args:
        target: The file.
        what: Name of the file in error messages.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = Path(target)
    plain = path.is_file() or not path.exists()
    if plain:
        path = path.resolve()
    part = path.with_name(f"{path.name}.part") if plain else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = part.open("wb")
    except OSError as error:
        raise _unwritable(target, what, error) from error
    try:
        with stream:
            yield stream
        if plain:
            part.replace(path)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise _unwritable(target, what, error) from error
    finally:
        if plain:
            part.unlink(missing_ok=True)


def _unwritable(target: str | Path, what: str, error: OSError) -> ConfigError:
    return ConfigError(f"{what} {str(target)!r} cannot be written: {error.strerror}")
