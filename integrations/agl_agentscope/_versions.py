"""The installed version of AgentScope: each major version needs its own implementation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

EXTRAS: Final = {1: "agentscope1", 2: "agentscope"}
"""The extra of agl-core that installs each major version."""


def installed() -> str | None:
    """Return the installed version; None if AgentScope is not installed."""
    try:
        return version("agentscope")
    except PackageNotFoundError:
        return None


def major(found: str | None) -> int | None:
    """Return the major number of a version."""
    return int(found.partition(".")[0]) if found else None


def extra() -> str:
    """Return the extra for the installed major version; that of version 2 by default."""
    return EXTRAS.get(major(installed()) or 2, EXTRAS[2])
