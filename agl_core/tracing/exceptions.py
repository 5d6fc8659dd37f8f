"""Exceptions as text and as attributes of spans."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from agl_core import semconv

_INSTALLED: Final = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
"""Where the standard library and installed packages lie."""


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
