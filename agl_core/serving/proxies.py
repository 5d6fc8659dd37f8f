"""The proxy that the environment names for an address."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit
from urllib.request import (
    getproxies_environment,
    proxy_bypass_environment,  # pyright: ignore[reportAttributeAccessIssue,reportUnknownVariableType]
)

from agl_core.errors import EngineError

_SUPPORTED: Final = ("http", "https")


def proxy_for(url: str) -> str | None:
    """What ``HTTP_PROXY``, ``HTTPS_PROXY`` or ``ALL_PROXY`` say, in either case.

    None where there is none, where ``NO_PROXY`` excludes the host, and for this machine itself.

    Raises:
        EngineError: it is of a kind that is not spoken, such as SOCKS.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    proxies = getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or _is_here(host) or proxy_bypass_environment(parts.netloc.rpartition("@")[2]):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme not in _SUPPORTED:
        raise EngineError(
            f"Cannot reach {url} through the proxy {shown(proxy)}, which the environment names: "
            f"give an http:// proxy in {parts.scheme.upper()}_PROXY, or name {host!r} in NO_PROXY"
        )
    return proxy


def shown(proxy: str) -> str:
    """A proxy without the user and password in it."""
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
