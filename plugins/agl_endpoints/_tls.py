"""TLS of the commands that serve, and of those that are clients."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import click

from agl_core.errors import ConfigError
from agl_core.serving import tls_context

T = TypeVar("T", bound=Callable[..., Any])

SERVER_TLS: ContextVar[ssl.SSLContext | None] = ContextVar("agl_server_tls", default=None)
"""TLS of the server that the current command starts; None: it speaks plain HTTP."""

_VARIABLE: Final = "SSL_CERT_FILE"
"""Names the certificates that OpenSSL, and so every Python client of this project, trusts."""
_META: Final = "agl_endpoints.tls"


def tls_options(command: T) -> T:
    """Add ``--tls-cert`` and ``--tls-key`` to a command, which sets `SERVER_TLS`."""
    key = click.option(
        "--tls-key",
        metavar="FILE",
        expose_value=False,
        callback=_take,
        help="PEM file with its key, unless --tls-cert has it.",
    )
    certificate = click.option(
        "--tls-cert",
        metavar="FILE",
        expose_value=False,
        callback=_take,
        help="PEM file with a certificate for --host: serve https://.",
    )
    return certificate(key(command))


def _take(context: click.Context, option: click.Parameter, value: str | None) -> None:
    given: dict[str | None, str | None] = context.meta.setdefault(_META, {})
    given[option.name] = value
    if given.keys() == {"tls_cert", "tls_key"}:
        SERVER_TLS.set(tls_context(given["tls_cert"], given["tls_key"]))


def _trust(context: click.Context, option: click.Parameter, value: str | None) -> None:
    del context, option
    if value is None:
        return
    path = os.path.abspath(value)  # noqa: PTH100  for the environment, links included
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ConfigError(
            f"--ca {value!r} holds no certificates: {error}. Give a PEM file with the "
            f"certificate of the authority that signed the servers' certificates"
        ) from error
    os.environ[_VARIABLE] = path


def ca_option(command: T) -> T:
    """Add ``--ca`` to a command: this process and its children trust the authorities in a file."""
    return _ca(command)


def make_ca_option() -> click.Option:
    """Return the option ``--ca`` for a command of another package."""
    return click.Option(["--ca"], **_CA)


_CA: Final[dict[str, Any]] = {
    "metavar": "FILE",
    "expose_value": False,
    "callback": _trust,
    "help": f"PEM file with the authorities to trust at https:// addresses; as {_VARIABLE}.",
}
_ca: Final = click.option("--ca", **_CA)
