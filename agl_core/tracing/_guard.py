"""Telemetry never raises into user code: what fails here is logged and counted instead."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from agl_core.errors import ConfigError
from agl_core.tracing._context import active

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


def emitter(callback: Callable[_P, _T]) -> Callable[_P, _T | None]:
    """Decorate a function by which user code records something.

    As `guarded`, but what the caller got wrong raises: an argument that the function does not
    have, or a `ConfigError` of the function's own.
    """

    @functools.wraps(callback)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        try:
            return callback(*args, **kwargs)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001  telemetry never raises into user code
            if isinstance(error, TypeError):
                _check_call(callback, args, kwargs)
            report(f"{callback.__qualname__} failed: {error!r}")
            return None

    return call


def _check_call(
    callback: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    signature = inspect.signature(callback)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        takes = ", ".join(signature.parameters)
        raise ConfigError(
            f"{callback.__qualname__} was called wrongly: {error}; it takes {takes}"
        ) from None


def report(message: str, *, framework: str = "") -> None:
    """Log the exception being handled and record it as a capture error; never raises."""
    _log.warning("%s", message, exc_info=True)
    context = active()
    if context is not None:
        with suppress(Exception):
            context.recorder.capture_error(message, framework=framework)
