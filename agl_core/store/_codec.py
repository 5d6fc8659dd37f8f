"""Encoding of records as msgpack bytes, for any text and values that users put into them."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec.msgpack import Ext

from agl_core.errors import StoreError
from agl_core.store._records import Lead
from agl_core.types import Attempt, Resources, Rollout, Span, from_list, to_list

T = TypeVar("T")

_ESCAPED = 1
_BIG_INT = 2
_INTS = 3
_FLOATS = 4
_CODES = {"i": _INTS, "d": _FLOATS}
_TYPECODES = {code: typecode for typecode, code in _CODES.items()}
_SWAPPED = sys.byteorder == "big"
"""Whether to swap bytes: arrays are stored in little-endian order."""
_UNENCODABLE = re.compile("[\\\\\ud800-\udfff]")
_ESCAPE = re.compile(r"\\([0-9a-f]{4})")


def _plain(value: Any) -> Any:
    """Convert a value that msgpack cannot encode to the most similar one that it can."""
    if isinstance(value, array):
        values = cast("array[Any]", value)
        code = _CODES.get(values.typecode)
        return repr(values) if code is None else Ext(code, _swapped(values).tobytes())
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[Any, Any]", value))
    return repr(value)


def _restore(code: int, data: memoryview) -> Any:
    if code in _TYPECODES:
        values: array[Any] = array(_TYPECODES[code])
        values.frombytes(data)
        return _swapped(values)
    if code == _BIG_INT:
        return int(bytes(data))
    return Ext(code, bytes(data))


def _swapped(values: array[Any]) -> array[Any]:
    """Return the values with the machine's byte order changed to the stored one, or back."""
    if not _SWAPPED:
        return values
    other = values[:]
    other.byteswap()
    return other


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_CANONICAL = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")
_ANY = msgspec.msgpack.Decoder(ext_hook=_restore)


def _escape(text: str) -> str:
    return _UNENCODABLE.sub(lambda match: f"\\{ord(match[0]):04x}", text)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def _escape_leaf(value: Any) -> Any:
    if isinstance(value, str):
        return _escape(value)
    if type(value) is int and not -(2**63) <= value < 2**64:
        return Ext(_BIG_INT, str(value).encode())
    return value


def _unescape_leaf(value: Any) -> Any:
    return _unescape(value) if isinstance(value, str) else value


def _walk(value: Any, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_key(key, leaf): _walk(item, leaf) for key, item in items}
    if isinstance(value, list | tuple):
        return [_walk(item, leaf) for item in cast("list[Any]", value)]
    return leaf(value)


def _key(key: Any, leaf: Callable[[Any], Any]) -> str:
    return cast("str", leaf(key if isinstance(key, str) else str(key)))


def encode(value: Any, *, canonical: bool = False) -> bytes:
    """Encode a record; text with lone surrogates and integers beyond 64 bits are preserved.

    A value that JSON cannot represent is replaced by its ``repr``.

    Args:
        value: A Struct, or JSON values.
        canonical: Sort mapping keys, so that equal records have equal bytes.

    Raises:
        RecursionError: the value contains itself or is nested too deeply.
    """
    encoder = _CANONICAL if canonical else _ENCODER
    try:
        return encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):
        # UTF-8 cannot encode a lone surrogate, msgpack no integer beyond 64 bits.
        tree = msgspec.to_builtins(value, enc_hook=_plain, builtin_types=(bytes, array))
        return encoder.encode(Ext(_ESCAPED, encoder.encode(_walk(tree, _escape_leaf))))


def encode_span(span: Span) -> bytes:
    """Encode a span; if an attribute contains itself, store all attributes as their ``repr``."""
    try:
        return encode(span)
    except RecursionError:
        attributes = {str(key): repr(value) for key, value in span.attributes.items()}
        return encode(msgspec.structs.replace(span, attributes=attributes))


class Codec(Generic[T]):
    """A decoder from bytes to records of one type."""

    def __init__(self, record: type[T], *, name: str = "") -> None:
        """Build a decoder; `name` stands for the record in errors, by default its class name."""
        self._type = record
        self._name = name or record.__name__
        self._decoder = msgspec.msgpack.Decoder(record, ext_hook=_restore, dec_hook=from_list)

    def decode(self, blob: bytes) -> T:
        """Decode bytes that `encode` returned.

        Raises:
            StoreError: the bytes are not a record of this type.
        """
        try:
            return self._decoder.decode(blob)
        except (msgspec.DecodeError, ValueError) as error:
            return self._lenient(blob, error)

    def _lenient(self, blob: bytes, error: Exception) -> T:
        """Decode escaped records, and records with mapping keys that are not text."""
        try:
            tree = _ANY.decode(blob)
            if isinstance(tree, Ext) and tree.code == _ESCAPED:
                tree = _walk(_ANY.decode(tree.data), _unescape_leaf)
            return msgspec.convert(_walk(tree, lambda value: value), self._type, dec_hook=from_list)
        except (msgspec.MsgspecError, ValueError):
            raise StoreError(
                f"A stored {self._name} cannot be read: {error}; "
                f"it was built with values of other types than its fields declare"
            ) from error


class _SpanOrder(msgspec.Struct, frozen=True, order=True):
    """The fields of `Span.order`; decoding them takes a seventh of the time of the whole span."""

    sequence: int = 0
    start_ns: int = 0
    id: str = ""


SPANS = Codec(Span)
"""Reads and writes a `Span` as bytes."""
SPAN_ORDERS = Codec(_SpanOrder, name="Span")
"""Reads only the sort key of an encoded `Span`."""
ROLLOUTS = Codec(Rollout)
"""Reads and writes a `Rollout` as bytes."""
ATTEMPTS = Codec(Attempt)
"""Reads and writes a `Attempt` as bytes."""
RESOURCES = Codec(Resources)
"""Reads and writes a `Resources` as bytes."""
LEADS = Codec(Lead)


def detached(value: T, codec: Codec[T], what: str) -> T:
    """Return the record encoded and decoded, as a copy that shares no objects with the original.

    Raises:
        StoreError: the record cannot be stored; the message names it as `what`.
    """
    try:
        return codec.decode(encode(value))
    except (RecursionError, StoreError) as error:
        raise StoreError(f"{what} cannot be stored: {error.__cause__ or error}") from error


def json_value(output: Any) -> Any:
    """Return a copy of an agent's output that consists of JSON values and bytes.

    Objects with fields become mappings. If any value cannot be converted, the ``repr`` of the whole
    output is returned.
    """
    try:
        return msgspec.to_builtins(output, builtin_types=(bytes,), enc_hook=to_list)
    except (TypeError, ValueError, RecursionError, NotImplementedError):
        return repr(output)
