"""OTLP's binary form: export requests to the JSON form, and answers to the binary form.

Exporters of most languages only send this form. Of the schema (opentelemetry-proto,
``trace_service.proto`` and its imports) only the fields that `decode` reads are known; others are
skipped, as protobuf prescribes.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from agl_otlp._values import Malformed

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10
_DEEPEST: Final = 64

ReadValue = Callable[[Any, int], Any]


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of a message: its JSON name, wire type and reader."""

    name: str
    wire: int
    read: ReadValue
    repeated: bool = False


def read_request(data: bytes) -> dict[str, Any]:
    """Return an ExportTraceServiceRequest in OTLP's JSON form.

    Raises:
        Malformed: the bytes are not such a message.
    """
    return _message(memoryview(data), _REQUEST, 0)


def answer(*, refused: int, reason: str) -> bytes:
    """Return an ExportTraceServiceResponse."""
    if not refused and not reason:
        return b""
    message = reason.encode()
    inner = b"".join(
        [
            b"\x08" + _varint_bytes(refused) if refused else b"",
            b"\x12" + _varint_bytes(len(message)) + message if message else b"",
        ]
    )
    return b"\x0a" + _varint_bytes(len(inner)) + inner


def _message(data: memoryview, fields: Mapping[int, _Field], depth: int) -> dict[str, Any]:
    if depth > _DEEPEST:
        raise Malformed(f"the request is nested deeper than {_DEEPEST} levels")
    found: dict[str, Any] = {}
    for number, wire, value in _pairs(data):
        known = fields.get(number)
        if known is None:
            continue
        if wire != known.wire:
            raise Malformed(f"field {known.name} has wire type {wire}, not {known.wire}")
        read = known.read(value, depth + 1)
        if known.repeated:
            cast("list[Any]", found.setdefault(known.name, [])).append(read)
        else:
            found[known.name] = read
    return found


def _pairs(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and raw value of each field."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise Malformed(f"the request is not protobuf: wire type {wire} at byte {at}")
        if at + size > end:
            raise Malformed("the request is incomplete protobuf: it ends inside a field")
        yield number, wire, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for place in range(_LONGEST_VARINT):
        if at + place >= len(data):
            raise Malformed("the request is incomplete protobuf: it ends inside a number")
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:  # noqa: PLR2004 - the bit that says there is more
            return number & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise Malformed("the request is not protobuf: a number has more than 10 bytes")


def _varint_bytes(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - what fits into one byte
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _text(value: Any, _: int) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"text is not UTF-8: {bytes(value)!r:.100}") from error


def _hex(value: Any, _: int) -> str:
    return bytes(value).hex()


def _fixed64(value: Any, _: int) -> int:
    return struct.unpack("<Q", value)[0]


def _double(value: Any, _: int) -> float:
    return struct.unpack("<d", value)[0]


def _signed(value: Any, _: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _base64(value: Any, _: int) -> str:
    return base64.b64encode(bytes(value)).decode()


def _plain(value: Any, _: int) -> Any:
    return value


def _inner(fields: Mapping[int, _Field]) -> ReadValue:
    return lambda value, depth: _message(value, fields, depth)


def _any(value: Any, depth: int) -> dict[str, Any]:
    return _message(value, _ANY, depth)


_PAIR: Final = {1: _Field("key", _BYTES, _text), 2: _Field("value", _BYTES, _any)}
_ARRAY: Final = {1: _Field("values", _BYTES, _any, repeated=True)}
_LIST: Final = {1: _Field("values", _BYTES, _inner(_PAIR), repeated=True)}
_ANY: Final = {
    1: _Field("stringValue", _BYTES, _text),
    2: _Field("boolValue", _VARINT, lambda value, _: bool(value)),
    3: _Field("intValue", _VARINT, _signed),
    4: _Field("doubleValue", _FIXED64, _double),
    5: _Field("arrayValue", _BYTES, _inner(_ARRAY)),
    6: _Field("kvlistValue", _BYTES, _inner(_LIST)),
    7: _Field("bytesValue", _BYTES, _base64),
}


def _attributes(number: int) -> dict[int, _Field]:
    return {number: _Field("attributes", _BYTES, _inner(_PAIR), repeated=True)}


_EVENT: Final = {
    1: _Field("timeUnixNano", _FIXED64, _fixed64),
    2: _Field("name", _BYTES, _text),
    **_attributes(3),
}
_LINK: Final = {
    1: _Field("traceId", _BYTES, _hex),
    2: _Field("spanId", _BYTES, _hex),
    **_attributes(4),
}
_STATUS: Final = {2: _Field("message", _BYTES, _text), 3: _Field("code", _VARINT, _plain)}
_SPAN: Final = {
    1: _Field("traceId", _BYTES, _hex),
    2: _Field("spanId", _BYTES, _hex),
    4: _Field("parentSpanId", _BYTES, _hex),
    5: _Field("name", _BYTES, _text),
    6: _Field("kind", _VARINT, _plain),
    7: _Field("startTimeUnixNano", _FIXED64, _fixed64),
    8: _Field("endTimeUnixNano", _FIXED64, _fixed64),
    **_attributes(9),
    11: _Field("events", _BYTES, _inner(_EVENT), repeated=True),
    13: _Field("links", _BYTES, _inner(_LINK), repeated=True),
    15: _Field("status", _BYTES, _inner(_STATUS)),
}
_SCOPE: Final = {1: _Field("name", _BYTES, _text)}
_SCOPE_SPANS: Final = {
    1: _Field("scope", _BYTES, _inner(_SCOPE)),
    2: _Field("spans", _BYTES, _inner(_SPAN), repeated=True),
}
_RESOURCE_SPANS: Final = {
    1: _Field("resource", _BYTES, _inner(_attributes(1))),
    2: _Field("scopeSpans", _BYTES, _inner(_SCOPE_SPANS), repeated=True),
}
_REQUEST: Final = {1: _Field("resourceSpans", _BYTES, _inner(_RESOURCE_SPANS), repeated=True)}
