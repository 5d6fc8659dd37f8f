"""Records as JSON documents for people and for the next run, whatever text is in them."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def document(record: Any) -> bytes:
    """Write a record as indented JSON; a lone surrogate, which UTF-8 lacks, as its escape."""
    try:
        return msgspec.json.format(msgspec.json.encode(record))
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(record), indent=2).encode()


def read_document(data: bytes, record: type[T]) -> T:
    """Read what `document` wrote.

    Raises:
        msgspec.MsgspecError: it is no JSON, or no such record.
    """
    try:
        return msgspec.json.decode(data, type=record)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            tree = json.loads(data)
        except ValueError:
            raise error from None
        return msgspec.convert(tree, record)
