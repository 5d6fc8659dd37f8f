"""Files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from agl_core.errors import ConfigError


@contextmanager
def whole_file(target: str | Path, *, told: str = "File") -> Generator[BinaryIO, None, None]:
    """Write a file, making its folder; a failure leaves what was there before.

    Args:
        target: The file.
        told: What names it, for the message.

    Raises:
        ConfigError: it cannot be written.
    """
    path = Path(target)
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = part.open("wb")
    except OSError as error:
        raise ConfigError(f"{told} {str(target)!r} cannot be written: {error.strerror}") from error
    try:
        with stream:
            yield stream
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
