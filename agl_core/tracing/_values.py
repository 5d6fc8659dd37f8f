"""Objects and exceptions as text and JSON values that every store can keep, within a size bound."""

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
"""Where the standard library and installed packages lie."""


def bounded(value: Any, limit: int) -> tuple[Any, bool]:
    """Copy `value` as a JSON value of at most about `limit` characters.

    The copy shares nothing with the original, so that a list which the agent changes later is
    kept as it was. Objects without a JSON form become their ``repr``, inside containers too; so do
    infinity and NaN, and lone surrogates are escaped.

    Returns:
        The value, and whether it had to be cut. A cut value is text that says how much is missing.
    """
    if value is None or isinstance(value, (int, float, str)):
        return _cut(_scalar(value), limit)
    try:
        data = _encoded(value)
    except Exception:  # noqa: BLE001  telemetry: whatever the object raises, the agent continues
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


def users_traceback(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame of the user's own code on; None where there is none.

    Frames of agl-core, its plugins, the standard library and installed packages are not the
    user's. They stay where the user's code calls them.
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
    """One line on an exception: class and message."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  telemetry: a broken __str__ must not hide the error
        message = ""
    name = type(error).__qualname__
    return f"{name}: {message}" if message else name


def exception_attributes(error: BaseException) -> Mapping[str, str]:
    """Type, message and stack trace under OpenTelemetry's names."""
    kind = type(error)
    return {
        semconv.EXCEPTION_TYPE: f"{kind.__module__}.{kind.__qualname__}",
        semconv.EXCEPTION_MESSAGE: describe(error),
        semconv.EXCEPTION_STACKTRACE: "".join(
            traceback.format_exception(kind, error, error.__traceback__)
        ),
    }
