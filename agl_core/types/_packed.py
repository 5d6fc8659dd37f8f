"""Token ids and log-probabilities as packed arrays: 4 bytes per id, 8 per log-probability.

An `array.array` never equals a list: compare two arrays, or ``ids.tolist()`` and a list.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    Ints: TypeAlias = array[int]
    """Signed 32-bit integers: ``array("i")``."""
    Floats: TypeAlias = array[float]
    """64-bit floats: ``array("d")``."""
else:
    # array.array takes no type arguments before Python 3.12, and msgspec evaluates annotations.
    Ints = Floats = array


def pack_ints(values: Iterable[int] = ()) -> Ints:
    """Pack integers into an ``array("i")``; an array of that kind is returned unchanged.

    Raises:
        ValueError: a value is not a 32-bit integer.
    """
    return _packed(values, "i")


def pack_floats(values: Iterable[float] = ()) -> Floats:
    """Pack numbers into an ``array("d")``; an array of that kind is returned unchanged.

    Raises:
        ValueError: a value is not a number.
    """
    return _packed(values, "d")


def from_list(kind: type, value: Any) -> Any:
    """Decode an array from a list: the ``dec_hook`` of every decoder of records.

    A list of whole numbers becomes ``array("i")``; a record with floats converts it afterwards.
    """
    if kind is not array:
        raise NotImplementedError
    if not isinstance(value, list):
        return value
    try:
        return pack_ints(cast("list[int]", value))
    except ValueError:
        return pack_floats(cast("list[float]", value))


def to_list(value: Any) -> Any:
    """Encode an array as a list: the ``enc_hook`` of every JSON encoder of records."""
    if isinstance(value, array):
        return cast("array[Any]", value).tolist()
    raise NotImplementedError(f"Values of type {type(value).__name__} have no form in JSON")


def _packed(values: Any, code: str) -> array[Any]:
    if values.__class__ is array and values.typecode == code:
        return values
    given = cast("list[Any]", values if isinstance(values, (list, tuple)) else list(values))
    packed: array[Any] = array(code)
    try:
        # struct.pack takes a quarter of the time of array's own conversion.
        packed.frombytes(struct.pack(f"{len(given)}{code}", *given))
    except (struct.error, OverflowError) as error:
        what = "32-bit integers" if code == "i" else "floats"
        raise ValueError(f"{given!r:.80} cannot be packed as {what}: {error}") from error
    return packed
