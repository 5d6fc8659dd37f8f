"""Which AgentScope is installed: versions 1 and 2 are one distribution and two integrations."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

EXTRAS: Final = {1: "agentscope1", 2: "agentscope"}
"""By major version: what brings it."""


def installed() -> str | None:
    """The version that is installed, if any."""
    try:
        return version("agentscope")
    except PackageNotFoundError:
        return None


def major(found: str | None) -> int | None:
    """Of a version."""
    return int(found.partition(".")[0]) if found else None


def extra() -> str:
    """The extra with the supported versions of what is installed."""
    return EXTRAS.get(major(installed()) or 2, EXTRAS[2])
