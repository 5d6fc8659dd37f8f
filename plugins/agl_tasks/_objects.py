"""The rows of objects: of tables of other libraries, and of anything that can be iterated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from agl_core.errors import ConfigError

ENDINGS: Final = (".jsonl", ".json", ".csv", ".parquet")
"""The files that `_files` reads."""

_ENTRY_LIMIT: Final = 5
"""Most splits of a data set that a message lists."""


def rows_of(source: Any, label: str) -> Iterable[Any]:
    """Return the rows of an object: a table with columns, or an iterable of rows.

    Tables are recognised by their methods, so that no library is imported. A missing cell of a
    table becomes None.

    Raises:
        ConfigError: the object has no rows.
    """
    rows = _table(source, label)
    return _iterable(source, label) if rows is None else rows


def check_columns(names: list[str], label: str) -> None:
    """Check that the columns of a table have different names.

    Raises:
        ConfigError: two have the same.
    """
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{label} has two columns {name!r}: rename one")


def without_nan(row: Any) -> Any:
    """Return a table's row with None instead of NaN, which marks a missing cell."""
    if not isinstance(row, dict):
        return row
    cells = cast("dict[str, Any]", row)
    return {key: None if _is_nan(cell) else cell for key, cell in cells.items()}


def _is_nan(cell: Any) -> bool:
    return isinstance(cell, float) and math.isnan(cell)


def _table(source: Any, label: str) -> Iterable[Any] | None:
    kind = cast("type[Any]", type(source))
    if callable(getattr(kind, "iterrows", None)):  # a pandas DataFrame
        check_columns([str(name) for name in source.columns], label)
        return source.astype(object).where(source.notna(), None).to_dict("records")
    if callable(getattr(kind, "to_pylist", None)):  # a pyarrow Table
        check_columns(list(getattr(source, "column_names", ())), label)
        return map(without_nan, source.to_pylist())
    if callable(getattr(kind, "iter_rows", None)) and callable(getattr(kind, "to_dicts", None)):
        return map(without_nan, source.to_dicts())  # a polars DataFrame
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
            f"callable that returns one, or a file that ends in {', '.join(ENDINGS)}"
        )
    return cast("Iterable[Any]", source)
