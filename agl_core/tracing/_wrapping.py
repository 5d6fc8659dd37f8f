"""Code of agl-core inside user code: wrapped library functions, callbacks that never raise."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

from agl_core.errors import ConfigError
from agl_core.tracing._context import active

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")

SEND: Final = ("request", "stream", "auth", "follow_redirects")
"""Parameters of ``send`` in httpx and httpx2."""

Wrap = Callable[[Callable[..., Any], Callable[[], bool]], Callable[..., Any]]
"""Makes a wrapper from the original function; the second argument returns whether the patch is
installed."""


class Patch:
    """One wrapped function of a class.

    If another library has wrapped our wrapper in the meantime, `remove` leaves it in place, and it
    only calls the original: removing it would also remove the other library's wrapper.
    """

    def __init__(
        self,
        library: Any,
        owner: type[Any],
        name: str,
        wrap: Wrap,
        *,
        parameters: Sequence[str] | None = SEND,
    ) -> None:
        """Check the function's signature; `install` wraps it.

        Args:
            library: Module whose name and version the error states.
            owner: Class that has the function.
            name: The function's name.
            wrap: Makes the wrapper.
            parameters: Names that the wrapper uses, without ``self``; None for a wrapper that
                passes all arguments through.

        Raises:
            ConfigError: the function does not take these parameters by name.
        """
        self._owner = owner
        self._name = name
        self._original = inspect.getattr_static(owner, name)
        self._inherited = name not in vars(owner)
        self._live = False
        function = getattr(owner, name)
        if parameters is not None:
            _check_signature(library, owner, name, parameters)
        wrapper = wrap(function, lambda: self._live)
        self._wrapper = functools.wraps(function)(wrapper)

    def install(self) -> None:
        self._live = True
        setattr(self._owner, self._name, self._wrapper)

    def remove(self) -> None:
        self._live = False
        if inspect.getattr_static(self._owner, self._name) is not self._wrapper:
            return
        if self._inherited:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._original)


def _check_signature(library: Any, owner: type[Any], name: str, parameters: Sequence[str]) -> None:
    signature = inspect.signature(getattr(owner, name))
    try:
        signature.bind(None, **dict.fromkeys(parameters))
    except TypeError as error:
        raise ConfigError(
            f"{library.__name__} {getattr(library, '__version__', '?')}: {owner.__qualname__}."
            f"{name}{signature} is not the {name}(self, {', '.join(parameters)}) that agl-core wraps "
            f"({error}), so what passes it would go unrecorded: use a version of "
            f"{library.__name__} that has it, or a newer agl-core"
        ) from error


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
