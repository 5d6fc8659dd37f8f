"""The proxy that the environment names for an address."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit
from urllib.request import (
    getproxies_environment,
    proxy_bypass_environment,  # pyright: ignore[reportAttributeAccessIssue,reportUnknownVariableType]
)

from agl_core.errors import AglError, EngineError

_SUPPORTED: Final = ("http", "https")


def proxy_for(url: str, *, error: type[AglError] = EngineError) -> str | None:
    """What ``HTTP_PROXY``, ``HTTPS_PROXY`` or ``ALL_PROXY`` say, in either case.

    None where there is none, where ``NO_PROXY`` excludes the host, and for loopback addresses.

    Raises:
        AglError: of the type `error`: the proxy is of an unsupported kind, such as SOCKS.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_here(host) or proxy_bypass_environment(parts.netloc.rpartition("@")[2]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in _SUPPORTED:
        raise error(
            f"Cannot reach {url} through the proxy {_shown(proxy)}, which the environment names: "
            f"give an http:// proxy in {parts.scheme.upper()}_PROXY, or name {host!r} in NO_PROXY"
        )
    return proxy


def through(proxy: str | None) -> str:
    """For an error, after the address: the proxy without its user and password, or nothing."""
    return f" through the proxy {_shown(proxy)}" if proxy is not None else ""


def advice(proxy: str | None, else_check: str) -> str:
    """For an error, what to check: `else_check`, and the environment where a proxy is used."""
    if proxy is None:
        return else_check
    return f"{else_check}, or name its host in NO_PROXY if it is reached without a proxy"


def _shown(proxy: str) -> str:
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
