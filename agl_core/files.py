"""Create files with mode 0600 and directories with mode 0700, independent of the umask."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_FILE: Final = 0o600
_DIRECTORY: Final = 0o700


def make_private_directory(directory: Path) -> None:
    """Create a directory and its missing parents; existing ones stay unchanged."""
    chain = [directory, *directory.parents]
    there = next((i for i, each in enumerate(chain) if each.is_dir()), None)
    for path in reversed(chain[:there]):
        path.mkdir(mode=_DIRECTORY, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """Open a file, as ``opener=`` of `open`; a new file is private from its creation on."""
    return os.open(path, flags, _FILE)


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read; also restrict a file that exists."""
    with open(path, "wb", opener=private_opener) as stream:
        path.chmod(_FILE)
        stream.write(data)


def touch_private(path: Path) -> None:
    """Create an empty file unless it exists."""
    os.close(private_opener(str(path), os.O_CREAT | os.O_RDONLY))


def restrict(directory: Path) -> None:
    """Set private modes on a directory and its contents, for files that other libraries created."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(_DIRECTORY if path.is_dir() else _FILE)
