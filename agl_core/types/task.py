"""Tasks, and their conversion from rows of a data set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time
from decimal import Decimal
from difflib import get_close_matches
from enum import Enum
from numbers import Integral, Real
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from agl_core.errors import ConfigError


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the data set, the argument of agent and reward."""

    id: str
    """Unique within its data set; groups, seeds and reports use it."""
    input: Any = None
    """The agent's input; any JSON value."""
    expected: Any = None
    """Reference answer for rewards, if the data set has one."""
    metadata: dict[str, Any] = {}


FIELDS: Final = Task.__struct_fields__
_AS_TEXT: Final = (date, time, UUID, Decimal)
"""Types with one standard text form."""


def as_task(row: Any, *, index: int, columns: Mapping[str, str] | None = None) -> Task:
    """Turn a row into a `Task`.

    A `Task` stays a `Task`. In a mapping (also a pydantic model, a dataclass or a named tuple),
    columns with the name of a task's field fill that field. With a column ``input``, all other
    columns go to `Task.metadata`; without it, all other columns together are the input. A row of
    another type is the input.

    Args:
        row: The row.
        index: Number of the row; its text is the default id.
        columns: Field of a task to the column that fills it; by default the column of the same
            name.

    Raises:
        ConfigError: a value has no form in JSON, a named column is missing, a column is a likely
            misspelling of a field, or the id is neither text nor an integer.
    """
    if isinstance(row, Task):
        values = {name: plain(getattr(row, name), name) for name in ("input", "expected")}
        metadata = _metadata(row.metadata, {})
        return Task(id=_id(row.id, index), metadata=metadata, **values)
    cells = record_of(row)
    if cells is None:
        if columns:
            raise ConfigError(
                f"the row is a {_type(row)}, which has no columns: leave out tasks.columns, or "
                f"give rows with the columns {sorted(columns.values())}"
            )
        return Task(id=str(index), input=plain(row, "the row"))
    own = {field: field for field in FIELDS if field in cells}
    if not isinstance(cells.get("metadata"), Mapping):
        own.pop("metadata", None)  # an ordinary column with this name
    named = own | dict(columns or {})
    _check_named(columns or {}, cells)
    others = {name: plain(cells[name], name) for name in cells if name not in named.values()}
    taken = {field: plain(cells[name], name) for field, name in named.items()}
    if "input" in taken:
        _check_spelling(others, taken)
    else:
        taken["input"], others = others, {}
    return Task(
        id=_id(taken.get("id"), index),
        input=taken["input"],
        expected=taken.get("expected"),
        metadata=_metadata(taken.get("metadata") or {}, others),
    )


def record_of(value: Any) -> dict[str, Any] | None:
    """Return the columns of a mapping, pydantic model, dataclass, named tuple or Struct; else None.

    Raises:
        ConfigError: a column's name is neither text nor a number.
    """
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, type):
        return None
    elif hasattr(value, "model_fields_set") and callable(getattr(value, "model_dump", None)):
        items = value.model_dump(mode="json").items()
    elif is_dataclass(value):
        items = [(field.name, getattr(value, field.name)) for field in fields(value)]
    elif isinstance(value, tuple) and hasattr(cast("Any", value), "_asdict"):
        items = cast("Any", value)._asdict().items()
    elif isinstance(value, msgspec.Struct):
        items = [(name, getattr(value, name)) for name in value.__struct_fields__]
    else:
        return None
    return {_key(key): item for key, item in items}


def plain(value: Any, where: str) -> Any:
    """Convert a value to JSON values and bytes, as a copy; arrays become lists.

    Args:
        value: Any value.
        where: The value's path, for errors.

    Raises:
        ConfigError: the value has no such form, or contains itself.
    """
    try:
        return _plain(value, where)
    except RecursionError:
        raise ConfigError(f"{where} is nested too deep, or contains itself") from None


def _plain(value: Any, where: str) -> Any:
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (str, Integral, Real, bytes, *_AS_TEXT)):
        return _scalar(value, where)
    cells = record_of(value)
    if cells is not None:
        return {key: _plain(item, f"{where}.{key}") for key, item in cells.items()}
    if hasattr(value, "__array_interface__"):
        return _plain(value.tolist(), where)
    if isinstance(value, (list, tuple)):
        items = cast("list[Any]", value)
        return [_plain(item, f"{where}[{number}]") for number, item in enumerate(items)]
    raise ConfigError(
        f"{where} is a {_type(value)}, which is no JSON value: give text, numbers, lists or "
        f"mappings of them"
    )


def _scalar(value: Any, where: str) -> Any:
    """Convert a scalar to its builtin type, as a store may not know subclasses."""
    if value is None or isinstance(value, (bool, bytes)):
        return value
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _number(float(value), where)
    return str.__str__(value) if isinstance(value, str) else str(value)


def _number(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise ConfigError(f"{where} is {value}, which is not a JSON number: give null for none")
    return value


def _key(key: Any) -> str:
    if isinstance(key, (str, int, float)):
        return str(key)
    raise ConfigError(f"the column name {key!r} is a {_type(key)}: name columns with text")


def _id(value: Any, index: int) -> str:
    if value is None:
        return str(index)
    if isinstance(value, str) or (
        isinstance(value, Integral) and value is not True and value is not False
    ):
        return str(value)
    raise ConfigError(f"the id {value!r} is a {_type(value)}: give text or an integer")


def _metadata(given: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = plain(given, "metadata")
    if twice := sorted(kept.keys() & others.keys()):
        raise ConfigError(f"the row has {twice} both as columns and in metadata: rename one")
    return {**kept, **others}


def _check_named(columns: Mapping[str, str], cells: Mapping[str, Any]) -> None:
    for field, name in columns.items():
        if name not in cells:
            raise ConfigError(
                f"there is no column {name!r}, which tasks.columns.{field} names; the row has "
                f"{sorted(cells)}"
            )


def _check_spelling(others: Mapping[str, Any], taken: Mapping[str, Any]) -> None:
    missing = [field for field in FIELDS if field not in taken]
    for name in others:
        if near := get_close_matches(name, missing, n=1, cutoff=0.8):
            raise ConfigError(
                f"unknown column {name!r}; did you mean {near[0]!r}? What else belongs to the "
                f"task goes under 'metadata'"
            )


def _type(value: Any) -> str:
    kind = cast("type[Any]", type(value))
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"
