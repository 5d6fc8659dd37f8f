"""Environment variables of services: ``DATABASE_URL``, ``DB_*``, ``EVENT_BUS_BACKEND`` and ``RABBITMQ_*``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from agl_compat._names import renamed
from agl_core.app import load_plugins
from agl_core.errors import ConfigError
from agl_core.store import store_schemes, without_password

DATABASE: Final = "DATABASE_URL"
BUS: Final = "EVENT_BUS_BACKEND"
_POOL: Final[Mapping[str, str]] = {
    "DB_POOL_SIZE": "pool_size",
    "DB_MAX_OVERFLOW": "pool_max_overflow",
    "DB_POOL_TIMEOUT": "pool_timeout_s",
    "DB_POOL_RECYCLE": "pool_recycle_s",
    "DB_POOL_PRE_PING": "pool_pre_ping",
}
_SQLITE: Final = "sqlite"
_MEMORY: Final = "memory"
_REDIS: Final = "redis://localhost:6379/0"
_EVENTS: Final = "AGL_EVENTS_URL"


def database_settings() -> dict[str, Any]:
    """Return the settings of the store in ``DATABASE_URL``; empty without one.

    ``sqlite:///FILE`` is a file, as SQLAlchemy writes it. The variables ``DB_*`` are read where the
    store has a pool.

    Raises:
        ConfigError: no plugin serves the scheme.
    """
    given = os.environ.get(DATABASE, "")
    if not given:
        return {}
    renamed(DATABASE, "AGL_STORE_URL, or store.url of a run file")
    scheme, separator, rest = given.partition("://")
    if separator and scheme.lower().partition("+")[0] == _SQLITE:
        return _of_file(rest)
    plugins = load_plugins()
    schemes = store_schemes(plugins)
    name = next((name for name, served in schemes.items() if scheme.lower() in served), None)
    if not separator or name is None:
        known = sorted({each for served in schemes.values() for each in served})
        raise ConfigError(
            f"{DATABASE} is {without_password(given)!r}, but no plugin serves it: write sqlite:///FILE, "
            f"or an address that begins with one of {', '.join(f'{each}://' for each in known)}"
        )
    model = plugins.registry("stores").options_model(name)
    known_options = set(model.model_fields) if model is not None else set[str]()
    return {"store.name": name, "store.url": given, **_options(known_options)}


def _of_file(rest: str) -> dict[str, Any]:
    path = unquote(rest.partition("?")[0].removeprefix("/"))
    if path in ("", ":memory:"):
        return {"store.name": _MEMORY}
    return {"store.name": _SQLITE, "store.path": path}


def _options(known: set[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, option in _POOL.items():
        value = os.environ.get(variable)
        if value and option in known:
            renamed(variable, f"store.{option} of a run file")
            found[f"store.{option}"] = value
    return found


def bus_settings() -> dict[str, Any]:
    """Return the settings of the event bus that ``EVENT_BUS_BACKEND`` names; empty without it.

    The address is put into the environment variable ``AGL_EVENTS_URL``, which a run reads: settings
    are stored with the run, and the address may hold a password.

    Raises:
        ConfigError: the bus is neither ``redis`` nor ``rabbitmq``.
    """
    given = os.environ.get(BUS, "")
    if not given:
        return {}
    renamed(BUS, "[events] of a run file, with the address in AGL_EVENTS_URL")
    makers = {"redis": _redis, "rabbitmq": _rabbitmq}
    if given.lower() not in makers:
        raise ConfigError(f"{BUS} is {given!r}: write redis or rabbitmq")
    os.environ.setdefault(_EVENTS, makers[given.lower()]())
    return {"events.url_env": _EVENTS}


def _redis() -> str:
    return os.environ.get("REDIS_URL", "") or _REDIS


def _rabbitmq() -> str:
    user, password, host, port, virtual = (
        os.environ.get(f"RABBITMQ_{name}", "") or otherwise
        for name, otherwise in (
            ("USERNAME", "guest"),
            ("PASSWORD", "guest"),
            ("HOST", "localhost"),
            ("PORT", "5672"),
            ("VHOST", "/"),
        )
    )
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"amqp://{login}@{host}:{port}/{quote(virtual, safe='')}"
