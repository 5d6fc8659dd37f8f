"""The environment variables through which unchanged programs find the gateway."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

_PROXIES: Final = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_NO_PROXY: Final = ("no_proxy", "NO_PROXY")
_OLD_BASE_URL: Final = "OPENAI_API_BASE"
"""Wins over ``OPENAI_BASE_URL`` in some clients, so it may not point elsewhere."""


@contextmanager
def gateway_environment(url: str, api_key: str) -> Generator[None, None, None]:
    """Point ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` at the gateway, and put them back.

    A variable that the user's program has set meanwhile, or removed, stays as it left it.

    Where a proxy is set, the gateway's host is added to ``NO_PROXY``: a proxy elsewhere cannot
    reach a gateway on this machine.

    Args:
        url: ``http://host:port`` of the gateway.
        api_key: Its key.
    """
    changes = _changes(url, api_key)
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if os.environ.get(name) != changes[name]:
                continue
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _changes(url: str, api_key: str) -> dict[str, str]:
    changes = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": api_key}
    if _OLD_BASE_URL in os.environ:
        changes[_OLD_BASE_URL] = f"{url}/v1"
    if any(os.environ.get(name) for name in _PROXIES):
        host = urlsplit(url).hostname or ""
        # Where the lower-case name is set, clients do not read the other: neither may hide what
        # the user gave.
        given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        changes.update(dict.fromkeys(_NO_PROXY, f"{given},{host}" if given else host))
    return changes
