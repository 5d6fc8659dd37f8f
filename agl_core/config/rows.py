"""Loading the tasks of a data set by the readers of plugins."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from agl_core.config.references import load_object
from agl_core.errors import ConfigError
from agl_core.types import Task, as_task
from agl_core.types.task import FIELDS, record_of

_log = logging.getLogger(__name__)


_OBJECTS: Final = "<object>"
"""Name of what reads the rows of objects."""


class Readers(Protocol):
    """What plugins register with ``agl_register_tasks``."""

    def __contains__(self, name: object, /) -> bool: ...

    def create(self, name: str, /, *args: Any) -> Any: ...


def load_tasks(
    source: Any, readers: Readers, *, columns: Mapping[str, str] | None = None
) -> list[Task]:
    """Return the tasks of a data set, in order.

    Args:
        source: A reference, an address or a file of rows; rows, or a callable that returns them; a
            reader may take other objects.
        readers: Read addresses and files by their scheme and ending, and objects.
        columns: Field of a task to the column that fills it; see `as_task`.

    Raises:
        ConfigError: the source cannot be read, a row is malformed (the message names it), two rows
            have the same id, or there are no rows.
        MissingExtraError: a reader needs a library that is not installed.
    """
    label = f"Data set {str(source)!r}" if isinstance(source, (str, Path)) else "Data set"
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    notes: dict[str, None] = {}
    for number, row in enumerate(_rows(source, readers, label), start=1):
        try:
            task = as_task(row, index=len(tasks), columns=columns)
        except ConfigError as error:
            raise ConfigError(f"{label}, row {number}: {error}") from error
        if task.id in seen:
            raise ConfigError(
                f"{label}, row {number}: the id {task.id!r} was already used by row "
                f"{seen[task.id]}; ids must be unique"
            )
        seen[task.id] = number
        tasks.append(task)
        notes.update(dict.fromkeys(_notes(row, columns)))
    if not tasks:
        raise ConfigError(f"{label} is empty: there is nothing to run")
    for note in notes:
        _log.warning("%s: %s", label, note)
    return tasks


def is_row_file(text: str) -> bool:
    """Return whether a text that names tasks is a file's name, not an address or a reference."""
    _, colon, last = text.rpartition(":")
    refers = "://" in text or (colon and last.replace(".", "").isidentifier())
    return not refers and bool(Path(text).suffix)


def _rows(source: Any, readers: Readers, label: str) -> Iterable[Any]:
    if isinstance(source, (str, Path)):
        text = str(source)
        scheme, is_address, _ = text.partition("://")
        if is_address:
            read = partial(_rows, readers=readers, label=label)
            return readers.create(f"{scheme.lower()}:", text, label, read)
        ending = Path(text).suffix.lower()
        if ending in readers:
            return readers.create(ending, Path(text).expanduser(), label)
        if is_row_file(text) and ending != ".py":
            raise ConfigError(
                f"{label}: no plugin reads files that end in {ending!r}; agl plugins lists the "
                f"endings. An object is named module:attribute or file.py:attribute"
            )
        source = load_object(text)
    rows: Any = source() if callable(source) else source
    return readers.create(_OBJECTS, rows, label) if _OBJECTS in readers else rows


def _notes(row: Any, columns: Mapping[str, str] | None) -> Iterator[str]:
    """Yield notes on columns that `columns` does not name, the same for rows with equal columns."""
    cells = None if columns or isinstance(row, Task) else record_of(row)
    if cells is None:
        return
    others = [name for name in cells if name not in FIELDS]
    if "input" not in cells:
        yield (
            f"rows have no column 'input', so task.input is a mapping with {', '.join(others)}; "
            f"tasks.columns = {{ input = ..., expected = ... }} names the columns to take instead"
        )
    elif others:
        yield f"the columns {', '.join(others)} are no fields of a task and go to task.metadata"
