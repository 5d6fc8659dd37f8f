"""Decorators that keep errors of telemetry out of user code: they are logged and recorded."""

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
    """Decorate a callback of agl-core that runs inside the agent's code.

    After an exception the callback returns None. The exception is logged as a warning and recorded
    as a capture error, so that the adapters drop the attempt.

    Args:
        framework: The integration of the callback.
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
    """Decorate a function that user code calls to record something.

    As `guarded`, but errors of the caller raise: an unknown argument, or a `ConfigError` that the
    function raises.
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
    """Log the current exception and record it as a capture error; never raises."""
    _log.warning("%s", message, exc_info=True)
    context = active()
    if context is not None:
        with suppress(Exception):
            context.recorder.capture_error(message, framework=framework)
