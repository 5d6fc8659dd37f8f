"""Telemetry never raises into user code: what fails here is logged and counted instead."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from agl_core.tracing.context import active

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


def guarded(framework: str = "") -> Callable[[Callable[_P, _T]], Callable[_P, _T | None]]:
    """Decorate a callback of ours that the agent's own code runs into.

    An exception becomes a warning in the log, a capture error of the attempt, which the adapters
    then drop, and the result None.

    Args:
        framework: The integration that the callback belongs to.
    """

    def decorate(callback: Callable[_P, _T]) -> Callable[_P, _T | None]:
        @functools.wraps(callback)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
            try:
                return callback(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  telemetry never raises into user code
                report(f"{callback.__qualname__} failed: {error!r}", framework=framework)
                return None

        return call

    return decorate


def report(message: str, *, framework: str = "") -> None:
    """Log the exception being handled and record it as a capture error; never raises."""
    _log.warning("%s", message, exc_info=True)
    context = active()
    if context is not None:
        with suppress(Exception):
            context.recorder.capture_error(message, framework=framework)
