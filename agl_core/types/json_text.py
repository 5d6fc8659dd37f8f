"""Lossless conversion of any record to JSON text and back.

A value without a JSON form is written as a mapping with one key: ``{"$bytes": base64}``,
``{"$float": "nan" | "inf" | "-inf"}`` or ``{"$time": iso}``. A user's mapping that looks like one
of these is written as ``{"$dict": {...}}``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, cast

import msgspec

from agl_core.text import has_lone_surrogate
from agl_core.types._packed import to_list


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a record as JSON text for `json_value`; see the module for values without a form."""
    tree = msgspec.to_builtins(value, builtin_types=(bytes, datetime), enc_hook=to_list)
    try:
        text = _dump(tree, indent)
    except (TypeError, ValueError):
        return _dump(_tagged(tree), indent)
    # Plain text may contain the mark too; tagging it again does not change it.
    return _dump(_tagged(tree), indent) if '"$' in text else text


def json_value(text: str) -> Any:
    """Return the plain values of a text that `json_text` wrote.

    Raises:
        ValueError: `json_text` did not write the text.
    """
    value = json.loads(text)
    return _untagged(value) if '"$' in text else value


def _dump(tree: Any, indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    text = json.dumps(
        tree, ensure_ascii=False, allow_nan=False, separators=separators, indent=indent
    )
    if has_lone_surrogate(text):
        return json.dumps(tree, allow_nan=False, separators=separators, indent=indent)
    return text


def _tagged(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        inner = {str(key): _tagged(item) for key, item in items}
        return {"$dict": inner} if _looks_tagged(inner) else inner
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in cast("list[Any]", value)]
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"$time": value.isoformat()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value


def _looks_tagged(value: dict[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    mapping = cast("dict[str, Any]", value)
    if not _looks_tagged(mapping):
        return {key: _untagged(item) for key, item in mapping.items()}
    ((tag, inner),) = mapping.items()
    return _UNTAG[tag](inner)


_UNTAG: Final[dict[str, Callable[[Any], Any]]] = {
    "$dict": lambda inner: {key: _untagged(item) for key, item in inner.items()},
    "$bytes": base64.b64decode,
    "$time": datetime.fromisoformat,
    "$float": float,
}
