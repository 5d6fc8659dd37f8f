"""Files of rows: JSON lines, JSON, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

from agl_core.config import read_text
from agl_core.errors import ConfigError, MissingExtraError
from agl_tasks._objects import check_columns, without_nan


def jsonl(path: Path, label: str) -> Iterator[Any]:
    """Yield the JSON values of lines."""
    text = read_text(path, what=label)
    number = 0
    # Not splitlines(), which also splits at U+2028 and others that JSON allows inside strings.
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        number += 1
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            place = f"row {number}" + (f" (line {line_number})" if number < line_number else "")
            raise ConfigError(f"{label}, {place} is not JSON: {error}") from error
        yield row


def json_array(path: Path, label: str) -> Iterator[Any]:
    """Yield the values of an array."""
    try:
        rows = json.loads(read_text(path, what=label), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{label} is not JSON: {error}") from error
    if not isinstance(rows, list):
        raise ConfigError(
            f"{label} holds a JSON {type(rows).__name__}, not an array of rows: put the rows into "
            f"[...], or write one a line into a .jsonl file"
        )
    yield from cast("list[Any]", rows)


def csv_table(path: Path, label: str) -> Iterator[dict[str, str | None]]:
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
                check_columns(header, label)
                continue
            number += 1
            if len(cells) != len(header):
                raise ConfigError(
                    f"{label}, row {number} (line {lines.line_num}) has {len(cells)} cells, but "
                    f"the header names {len(header)} columns: quote cells that hold a comma"
                )
            yield {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise ConfigError(f"{label}, line {lines.line_num} is not CSV: {error}") from error


def parquet_table(path: Path, label: str) -> Iterator[Any]:
    """Yield the rows of a Parquet file."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtraError("parquet", needs="pyarrow", extra="parquet") from error
    try:
        table = parquet.read_table(str(path))
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise ConfigError(f"{label}: cannot read {str(path)!r} as Parquet: {error}") from error
    check_columns(table.column_names, label)
    yield from map(without_nan, table.to_pylist())


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
