"""The key that clients of a server give, for servers that are reached from other machines."""

from __future__ import annotations

import ipaddress

from agl_core.serving import fresh_key, given_key


def key_for(host: str) -> str:
    """Return the key that requests need of a server that listens on `host`.

    It is empty where only this machine reaches the server, and else the key in ``AGL_API_KEY``, or a
    new one if that is not set.
    """
    return "" if is_loopback(host) else given_key() or fresh_key()


def is_loopback(host: str) -> bool:
    """Return whether an address is this machine's own, which other machines do not reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
