"""Bring any object into a JSON value that every store can keep, within a size bound."""

from __future__ import annotations

import math
from typing import Any, cast

from msgspec import json, to_builtins

from agl_core.text import escaped


def bounded(value: Any, limit: int) -> tuple[Any, bool]:
    """Copy `value` as a JSON value of at most about `limit` characters.

    The copy shares nothing with the original, so that a list which the agent goes on editing is
    kept as it was. Objects without a JSON form become their ``repr``, inside containers too; so do
    infinity and NaN, and lone surrogates are escaped.

    Returns:
        The value, and whether it had to be cut. A cut value is text that says how much is missing.
    """
    if value is None or isinstance(value, (int, float, str)):
        return _cut(_scalar(value), limit)
    try:
        data = _encoded(value)
    except Exception:  # noqa: BLE001  telemetry: whatever the object does, the agent goes on
        return _cut(represent(value), limit)
    if len(data) <= limit:
        return json.decode(data), False
    return _cut(data.decode(), limit)


def _encoded(value: Any) -> bytes:
    try:
        return json.encode(value, enc_hook=_inside)
    except UnicodeEncodeError:
        return json.encode(_escaped(to_builtins(value, enc_hook=_inside)))


def _escaped(tree: Any) -> Any:
    """Builtins with every text in a form that encodes."""
    if isinstance(tree, str):
        return escaped(tree)
    if isinstance(tree, dict):
        items = cast("dict[Any, Any]", tree).items()
        return {_escaped(key): _escaped(item) for key, item in items}
    if isinstance(tree, (list, tuple)):
        return [_escaped(item) for item in cast("list[Any]", tree)]
    return tree


def text(value: Any) -> str:
    """A name as plain text, whatever was given as one."""
    if isinstance(value, str):
        return str.__str__(value)
    try:
        return str(value)
    except Exception:  # noqa: BLE001  telemetry: a broken __str__ is not the agent's failure
        return represent(value)


def represent(value: Any) -> str:
    """``repr`` that never raises and always encodes."""
    try:
        return escaped(repr(value))
    except Exception:  # noqa: BLE001  telemetry: a broken __repr__ is not the agent's failure
        return f"<{type(value).__qualname__} without a repr>"


def _scalar(value: bool | float | str | None) -> Any:
    """The value itself, as its plain builtin type, or text where no store could keep it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return escaped(str.__str__(value))
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else float.__repr__(value)
    return int.__int__(value)


def _inside(value: Any) -> Any:
    """What the encoder makes of an object inside a container that it does not know itself."""
    return _scalar(value) if isinstance(value, (int, float, str)) else represent(value)


def _cut(value: Any, limit: int) -> tuple[Any, bool]:
    if not isinstance(value, str) or len(value) <= limit:
        return value, False
    return f"{value[:limit]}... [{len(value) - limit} more characters]", True
