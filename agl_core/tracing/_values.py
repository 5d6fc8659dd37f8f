"""Conversion of objects and exceptions to text and JSON values of bounded size for the store."""

from __future__ import annotations

import math
import sysconfig
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, cast

from msgspec import json, to_builtins

from agl_core import semconv
from agl_core.text import escaped

_INSTALLED: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
"""Folders of the standard library and of installed packages."""
_MAX_WHY_CHARS: Final = 16_384


def bounded(value: Any, limit: int) -> tuple[Any, bool]:
    """Copy `value` as a JSON value of at most about `limit` characters.

    The copy shares nothing with the original, so that later changes of a list do not change it.
    Objects without a JSON form, infinity and NaN become their ``repr``, also inside containers;
    lone surrogates are escaped.

    Returns:
        The value, and whether it was cut. A cut value is text that ends with the number of missing
        characters.
    """
    if value is None or isinstance(value, (int, float, str)):
        return _cut(_scalar(value), limit)
    try:
        data = _encoded(value)
    except Exception:  # noqa: BLE001  telemetry: the agent continues after any error of the object
        return _cut(represent(value), limit)
    if len(data) <= limit:
        return json.decode(data), False
    return _cut(data.decode(), limit)


def reason(why: Any) -> tuple[str, bool]:
    """Return a reward's reason as a record keeps it, and whether it was cut.

    Space around it is removed, lone surrogates are escaped. A cut reason ends with the number of
    missing characters.
    """
    return bounded(text(why).strip(), _MAX_WHY_CHARS)


def _encoded(value: Any) -> bytes:
    try:
        return json.encode(value, enc_hook=_inside)
    except UnicodeEncodeError:
        return json.encode(_escaped(to_builtins(value, enc_hook=_inside)))


def _escaped(tree: Any) -> Any:
    """Escape every text in a tree of builtins, so that it encodes."""
    if isinstance(tree, str):
        return escaped(tree)
    if isinstance(tree, dict):
        items = cast("dict[Any, Any]", tree).items()
        return {_escaped(key): _escaped(item) for key, item in items}
    if isinstance(tree, (list, tuple)):
        return [_escaped(item) for item in cast("list[Any]", tree)]
    return tree


def text(value: Any) -> str:
    """Return a name of any type as plain text."""
    if isinstance(value, str):
        return str.__str__(value)
    try:
        return str(value)
    except Exception:  # noqa: BLE001  telemetry: a broken __str__ is not the agent's failure
        return represent(value)


def represent(value: Any) -> str:
    """Return a ``repr`` that always encodes; never raises."""
    try:
        return escaped(repr(value))
    except Exception:  # noqa: BLE001  telemetry: a broken __repr__ is not the agent's failure
        return f"<{type(value).__qualname__} without a repr>"


def _scalar(value: bool | float | str | None) -> Any:
    """Return the value as its builtin type, or as text if JSON has no form for it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return escaped(str.__str__(value))
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else float.__repr__(value)
    return int.__int__(value)


def _inside(value: Any) -> Any:
    """Encode an object inside a container that the encoder does not know."""
    return _scalar(value) if isinstance(value, (int, float, str)) else represent(value)


def _cut(value: Any, limit: int) -> tuple[Any, bool]:
    if not isinstance(value, str) or len(value) <= limit:
        return value, False
    return f"{value[:limit]}... [{len(value) - limit} more characters]", True


def users_traceback(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the first frame of user code on; None without such a frame.

    Frames of agl-core, its plugins, the standard library and installed packages are not user code.
    They are kept after the first frame of user code.
    """
    while trace is not None and not _is_users(trace):
        trace = trace.tb_next
    return trace


def _is_users(trace: TracebackType) -> bool:
    code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
    file = code.co_filename
    ours = module.partition(".")[0].startswith("agl_")
    return not ours and not file.startswith(("<frozen", *_INSTALLED))


def describe(error: BaseException) -> str:
    """Return an exception's class and message in one line."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  telemetry: a broken __str__ must not hide the error
        message = ""
    name = type(error).__qualname__
    return f"{name}: {message}" if message else name


def exception_attributes(error: BaseException) -> Mapping[str, str]:
    """Return type, message and stack trace under OpenTelemetry's names."""
    kind = type(error)
    return {
        semconv.EXCEPTION_TYPE: f"{kind.__module__}.{kind.__qualname__}",
        semconv.EXCEPTION_MESSAGE: describe(error),
        semconv.EXCEPTION_STACKTRACE: "".join(
            traceback.format_exception(kind, error, error.__traceback__)
        ),
    }
