"""Switch CrewAI's telemetry off in runs, unless the user set one of its variables."""

from __future__ import annotations

import os
from typing import Final

SWITCHES: Final = ("CREWAI_DISABLE_TELEMETRY", "CREWAI_DISABLE_TRACKING", "OTEL_SDK_DISABLED")
_OFF: Final = frozenset({"1", "on", "true", "yes"})
"""Values that CrewAI reads as true in these variables."""


def is_off() -> bool:
    """Return whether CrewAI sends no telemetry in a run."""
    return not _said() or any(os.environ.get(name, "").strip().lower() in _OFF for name in SWITCHES)


def _said() -> bool:
    return any(name in os.environ for name in SWITCHES)


class NoTelemetry:
    """Switches telemetry off while attached; CrewAI reads the variables for each report."""

    def __init__(self) -> None:
        self._ours = False

    def install(self) -> None:
        if not _said():
            os.environ[SWITCHES[0]] = "true"
            self._ours = True

    def remove(self) -> None:
        """Remove the variable that `install` set."""
        if self._ours:
            os.environ.pop(SWITCHES[0], None)
            self._ours = False
