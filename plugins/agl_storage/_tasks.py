"""Tasks from addresses."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agl_core.errors import ConfigError
from agl_storage._manifest import StorageError
from agl_storage._remote import Remote


def read_tasks(address: str, label: str, read: Callable[[Path], Iterable[Any]]) -> Iterator[Any]:
    """Yield the rows of a file in a storage, which is fetched once.

    Raises:
        ConfigError: it cannot be fetched.
        MissingExtraError: the library of the scheme is not installed.
    """
    is_web = address.partition("://")[0].lower() in ("http", "https")
    path, mark, query = address.partition("?") if is_web else (address, "", "")
    folder, _, name = path.rpartition("/")
    if not posixpath.splitext(name)[1]:
        raise ConfigError(f"{label} names no file: end the address with a file such as tasks.jsonl")
    try:
        remote = Remote(folder)
        with TemporaryDirectory(prefix="agl-") as directory:
            file = Path(directory) / name
            remote.get(f"{name}{mark}{query}", file)
            yield from _rows(file, label, read)
    except StorageError as error:
        raise ConfigError(f"{label} cannot be fetched. {error}") from error


def _rows(file: Path, label: str, read: Callable[[Path], Iterable[Any]]) -> Iterable[Any]:
    try:
        return read(file)  # reads nothing yet, if a reader takes the ending
    except ConfigError as error:
        raise ConfigError(
            f"{label} is no file of rows: end the address with .jsonl, .json, .csv or .parquet"
        ) from error
