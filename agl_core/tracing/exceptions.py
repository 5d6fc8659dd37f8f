"""Exceptions as text and as attributes of spans."""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from agl_core import semconv


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
