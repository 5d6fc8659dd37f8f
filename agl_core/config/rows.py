"""Loading the tasks of a data set from files, tables of other libraries, and Python objects."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from agl_core.config.references import load_object, read_text
from agl_core.errors import ConfigError, MissingExtraError
from agl_core.types import Task, as_task
from agl_core.types.task import FIELDS, record_of

TaskSource = str | Path | Callable[[], Any] | Iterable[Any]
"""A reference, a file of rows, rows, a table, or a callable that returns rows or a table."""
PlacedRow = tuple[str, Any]
"""A row's place, for messages, and its content."""

_log = logging.getLogger(__name__)

_ENTRY_LIMIT: Final = 5
"""Most splits of a data set that a message lists."""


def load_tasks(
    source: TaskSource, *, base: Path | None = None, columns: Mapping[str, str] | None = None
) -> list[Task]:
    """Load the tasks of a data set, in order.

    Args:
        source: A ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file; rows or a callable that
            returns them; or a reference to either. Rows may be a table: a DataFrame or an arrow
            table.
        base: Folder of relative files; None for the working directory.
        columns: Field of a task to the column that fills it; see `as_task`.

    Raises:
        ConfigError: the source cannot be read, a row is malformed (the message names it), two rows
            have the same id, or there are no rows.
        MissingExtraError: a Parquet file needs the extra ``parquet``.
    """
    label = f"Data set {str(source)!r}" if isinstance(source, (str, Path)) else "Data set"
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    notes: dict[str, None] = {}
    for place, row in _rows(source, base, label):
        try:
            task = as_task(row, index=len(tasks), columns=columns)
        except ConfigError as error:
            raise ConfigError(f"{label}, {place}: {error}") from error
        if task.id in seen:
            raise ConfigError(
                f"{label}, {place}: the id {task.id!r} was already used by {seen[task.id]}; "
                f"ids must be unique"
            )
        seen[task.id] = place
        tasks.append(task)
        notes.update(dict.fromkeys(_notes(row, columns)))
    if not tasks:
        raise ConfigError(f"{label} is empty: there is nothing to run")
    for note in notes:
        _log.warning("%s: %s", label, note)
    return tasks


def is_row_file(name: str) -> bool:
    """Return whether the name has the ending of a file of rows."""
    return Path(name).suffix.lower() in _READERS


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


def _rows(source: TaskSource, base: Path | None, label: str) -> Iterator[PlacedRow]:
    if isinstance(source, (str, Path)):
        text = str(source)
        if is_row_file(text):
            path = (base or Path()) / Path(text).expanduser()
            yield from _READERS[path.suffix.lower()](path, label)
            return
        source = cast("TaskSource", load_object(text, base=base))
    yield from _rows_of(source() if callable(source) else source, label)


def _rows_of(source: Any, label: str) -> Iterator[PlacedRow]:
    """Yield the rows of an object: a table with columns, or an iterable of rows.

    Tables are recognised by their methods, so that no library is imported. A missing cell of a
    table becomes None.

    Raises:
        ConfigError: the object has no rows.
    """
    rows = _table(source, label)
    if rows is None:
        rows = _iterable(source, label)
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _table(source: Any, label: str) -> Iterable[Any] | None:
    kind = cast("type[Any]", type(source))
    if callable(getattr(kind, "iterrows", None)):  # a pandas DataFrame
        _check_columns([str(name) for name in source.columns], label)
        return source.astype(object).where(source.notna(), None).to_dict("records")
    if callable(getattr(kind, "to_pylist", None)):  # a pyarrow Table
        _check_columns(list(getattr(source, "column_names", ())), label)
        return map(_without_nan, source.to_pylist())
    if callable(getattr(kind, "iter_rows", None)) and callable(getattr(kind, "to_dicts", None)):
        return map(_without_nan, source.to_dicts())  # a polars DataFrame
    return None


def _iterable(source: Any, label: str) -> Iterable[Any]:
    kind = type(source).__name__
    if isinstance(source, Mapping):
        names = [str(key) for key in cast("Mapping[Any, Any]", source)]
        shown = ", ".join(names[:_ENTRY_LIMIT])
        raise ConfigError(
            f"{label} gives a {kind} with the keys {shown or '(none)'}, not rows: give a list of "
            f"rows, or one split of a data set"
        )
    if hasattr(source, "read"):
        raise ConfigError(f"{label} gives an open file ({kind}), not rows: give its path")
    if isinstance(source, (str, bytes)) or not isinstance(source, Iterable):
        raise ConfigError(
            f"{label} gives a {kind}, not rows: give a list of tasks, a table with columns, a "
            f"callable that returns one, or a file that ends in {', '.join(_READERS)}"
        )
    return cast("Iterable[Any]", source)


def _jsonl(path: Path, label: str) -> Iterator[PlacedRow]:
    text = read_text(path, what=label)
    # Not splitlines(), which also splits at U+2028 and others that JSON allows inside strings.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"row {number}", json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{label}, row {number} is not JSON: {error}") from error


def _json(path: Path, label: str) -> Iterator[PlacedRow]:
    try:
        rows = json.loads(read_text(path, what=label), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{label} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ConfigError(
            f"{label} holds a JSON {type(rows).__name__}, not an array of rows: put the rows into "
            f"[...], or write one a line into a .jsonl file"
        )
    for number, row in enumerate(cast("list[Any]", rows), start=1):
        yield f"row {number}", row


def _csv(path: Path, label: str) -> Iterator[PlacedRow]:
    """Yield the rows of a CSV file; cells are text, an empty cell is None."""
    lines = csv.reader(io.StringIO(read_text(path, what=label), newline=""), strict=True)
    header: list[str] = []
    number = 0
    try:
        for cells in lines:
            if not cells:
                continue
            if not header:
                header = cells
                _check_columns(header, label)
                continue
            number += 1
            if len(cells) != len(header):
                raise ConfigError(
                    f"{label}, row {number} (line {lines.line_num}) has {len(cells)} cells, but "
                    f"the header names {len(header)} columns: quote cells that hold a comma"
                )
            yield f"row {number}", {name: c or None for name, c in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise ConfigError(f"{label}, line {lines.line_num} is not CSV: {error}") from error


def _parquet(path: Path, label: str) -> Iterator[PlacedRow]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("parquet", needs="pyarrow", extra="parquet") from error
    try:
        table = parquet.read_table(str(path))
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise ConfigError(f"{label}: cannot read {str(path)!r} as Parquet: {error}") from error
    _check_columns(table.column_names, label)
    for number, row in enumerate(table.to_pylist(), start=1):
        yield f"row {number}", _without_nan(row)


_READERS: Final[dict[str, Callable[[Path, str], Iterator[PlacedRow]]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _check_columns(names: list[str], label: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{label} has two columns {name!r}: rename one")


def _without_nan(row: Any) -> Any:
    """Return a table's row with None instead of NaN, which marks a missing cell."""
    if not isinstance(row, dict):
        return row
    cells = cast("dict[str, Any]", row)
    return {key: None if _is_nan(cell) else cell for key, cell in cells.items()}


def _is_nan(cell: Any) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
