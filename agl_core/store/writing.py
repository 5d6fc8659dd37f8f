"""Writing a file completely or not at all."""

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
    """Write a file, making its folder; a failure leaves what was there before.

    What a link leads to is written, and what is no file, such as a pipe or a device, as it comes.

    Args:
        target: The file.
        what: Names the file in the message.

    Raises:
        ConfigError: it cannot be written.
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
