"""``setup_rate_limiting(app)`` and the variables ``RATE_LIMIT_*``."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, Final, TypeVar

from agl_compat._names import renamed
from agl_core.errors import ConfigError

T = TypeVar("T")

_PREFIX: Final = "RATE_LIMIT_"
_MIDDLEWARE: Final = "agl_limits.RateLimitMiddleware"
_ENDPOINTS: Final = "requests of [limits.endpoints] in a run file"
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def setup_rate_limiting(app: T, *, redis: str = "") -> T:
    """Limit the requests to an ASGI application as the variables ``RATE_LIMIT_*`` say.

    Args:
        app: An application; one of Starlette or FastAPI gets the middleware.
        redis: Address of a Redis in which several processes count together.

    Returns:
        The application; any other than Starlette's is wrapped. Unchanged if ``RATE_LIMIT_ENABLED``
        is false.

    Raises:
        ConfigError: a variable has a wrong value.
        MissingExtraError: the extra ``limits`` is not installed.
    """
    renamed("setup_rate_limiting", f"app.add_middleware({_MIDDLEWARE}, ...)")
    if not _switch("ENABLED", default=True, today="the middleware itself"):
        return app
    from agl_limits import RateLimitMiddleware, parse_rate  # noqa: PLC0415

    rate = f"rate of {_MIDDLEWARE}"
    most = _number("MAX_REQUESTS", 100, today=rate)
    seconds = _number("WINDOW_SECONDS", 60, today=rate)
    options: dict[str, Any] = {
        "rate": f"{most} per {seconds} seconds",
        "redis": redis,
        "key_header": _text("IDENTIFIER_HEADER", "X-API-Key", today=f"key_header of {_MIDDLEWARE}"),
        "by_address": _switch("FALLBACK_TO_IP", default=True, today=f"by_address of {_MIDDLEWARE}"),
        "exclude": [
            *_list("EXCLUDE_PATHS", ("/health", "/metrics")),
            *(method.upper() for method in _list("EXCLUDE_METHODS", ("OPTIONS",))),
        ],
    }
    parse_rate(options["rate"])  # an application makes its middleware later
    given: Any = app
    if hasattr(given, "add_middleware"):
        given.add_middleware(RateLimitMiddleware, **options)
        return app
    wrapped: Any = RateLimitMiddleware(given, **options)
    return wrapped


def service_settings() -> dict[str, Any]:
    """Return the settings of a run's requests to models outside; empty if no variable is set.

    Raises:
        ConfigError: a variable has a wrong value.
    """
    names = ("SERVICE_MAX_REQUESTS", "SERVICE_WINDOW_SECONDS")
    if not any(os.environ.get(_PREFIX + name) for name in names):
        return {}
    if not _switch("ENABLED", default=True, today="[limits] of a run file"):
        return {}
    most = _number(names[0], 1_000, today=_ENDPOINTS)
    seconds = _number(names[1], 60, today=_ENDPOINTS)
    return {"limits.endpoints": {"*": {"requests": f"{most} per {seconds} seconds"}}}


def _text(name: str, default: str, *, today: str) -> str:
    value = os.environ.get(_PREFIX + name, "")
    if value:
        renamed(_PREFIX + name, today)
    return value or default


def _list(name: str, default: Collection[str]) -> list[str]:
    value = _text(name, ",".join(default), today=f"exclude of {_MIDDLEWARE}")
    return [each for part in value.strip("[]").split(",") if (each := part.strip(" \"'"))]


def _number(name: str, default: int, *, today: str) -> int:
    value = _text(name, str(default), today=today)
    if not value.strip().isdecimal() or int(value) == 0:
        raise ConfigError(f"{_PREFIX}{name} is {value!r}: write a whole number above 0")
    return int(value)


def _switch(name: str, *, default: bool, today: str) -> bool:
    value = _text(name, str(default), today=today).strip().lower()
    if value not in (*_YES, *_NO):
        raise ConfigError(f"{_PREFIX}{name} is {value!r}: write true or false")
    return value in _YES
