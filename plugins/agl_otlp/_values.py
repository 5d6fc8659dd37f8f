"""Attribute values in OTLP's JSON form, in which each value states its type."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from agl_core.text import replaced

_INT64: Final = 2**63


class Malformed(ValueError):  # noqa: N818  names the fault in a client's request
    """A part of a request that is not OTLP."""


def attributes_of(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return plain attributes as OTLP's list of pairs."""
    return [{"key": replaced(name), "value": any_value(value)} for name, value in values.items()]


def any_value(value: Any) -> dict[str, Any]:
    """Convert a plain value; a type that OTLP lacks becomes text, and None an empty value."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _UNUSUAL[str(value)]}
    if value is None:
        return {}
    return _compound(value) or {"stringValue": replaced(str(value))}


def _compound(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {"bytesValue": base64.b64encode(value).decode()}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [any_value(v) for v in cast("Iterable[Any]", value)]}}
    if isinstance(value, Mapping):
        pairs = {str(name): item for name, item in cast("Mapping[Any, Any]", value).items()}
        return {"kvlistValue": {"values": attributes_of(pairs)}}
    return {}


_UNUSUAL: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def plain_attributes(pairs: Any, *, where: str) -> dict[str, Any]:
    """Convert OTLP's list of pairs to plain attributes; of equal keys the last one counts.

    Raises:
        Malformed: it is not such a list.
    """
    found: dict[str, Any] = {}
    for pair in sequence(pairs, where=where):
        if not isinstance(pair, dict) or not isinstance(name := pair.get("key"), str):  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
            raise Malformed(f"{where} has an attribute without a key: {pair!r:.200}")
        found[name] = plain(cast("dict[str, Any]", pair).get("value"), where=f"{where}.{name}")
    return found


def plain(value: Any, *, where: str) -> Any:
    """Convert a typed value to a plain one.

    Raises:
        Malformed: it is not a typed value, or its type does not exist in OTLP.
    """
    if not value and (value is None or isinstance(value, dict)):
        return None
    if not isinstance(value, dict) or len(cast("dict[str, Any]", value)) != 1:
        raise Malformed(f"{where} is not a typed value: {value!r:.200}")
    ((kind, inner),) = cast("dict[str, Any]", value).items()
    read = _READERS.get(kind)
    if read is None:
        raise Malformed(f"{where} has the unknown type {kind!r}")
    try:
        return read(inner, where)
    except Malformed:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"{where} is not a {kind}: {inner!r:.200}") from error


def sequence(value: Any, *, where: str) -> list[Any]:
    """Return the value, which must be a list; an absent one is empty.

    Raises:
        Malformed: it is not a list.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise Malformed(f"{where} is not a list: {value!r:.200}")
    return cast("list[Any]", value)


def mapping(value: Any, *, where: str) -> dict[str, Any]:
    """Return the value, which must be a mapping.

    Raises:
        Malformed: it is not a mapping.
    """
    if not isinstance(value, dict):
        raise Malformed(f"{where} is not a mapping: {value!r:.200}")
    return cast("dict[str, Any]", value)


def _string(value: Any, _: str) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _boolean(value: Any, _: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def integer(value: Any, _: str = "") -> int:
    """Convert a whole number, either a JSON number or the text that OTLP prescribes.

    Raises:
        ValueError: it is not a whole number, or is longer than 64 bits.
        TypeError: it has another type.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    number = int(value)
    if not -_INT64 <= number < 2 * _INT64:
        raise ValueError
    return number


def _double(value: Any, _: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def _array(value: Any, where: str) -> list[Any]:
    items = sequence(mapping(value, where=where).get("values"), where=where)
    return [plain(item, where=where) for item in items]


def _mapping(value: Any, where: str) -> dict[str, Any]:
    return plain_attributes(mapping(value, where=where).get("values"), where=where)


_READERS: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "stringValue": _string,
    "boolValue": _boolean,
    "intValue": integer,
    "doubleValue": _double,
    "arrayValue": _array,
    "kvlistValue": _mapping,
    "bytesValue": lambda value, _: base64.b64decode(value, validate=True),
}
