"""CrewAI's reports to its maker: off in runs, unless the user has said whether they are."""

from __future__ import annotations

import os
from typing import Final

SWITCHES: Final = ("CREWAI_DISABLE_TELEMETRY", "CREWAI_DISABLE_TRACKING", "OTEL_SDK_DISABLED")
_OFF: Final = frozenset({"1", "on", "true", "yes"})
"""What CrewAI takes for a yes in each of these."""


def is_off() -> bool:
    """Whether CrewAI reports nothing in a run."""
    return not _said() or any(os.environ.get(name, "").strip().lower() in _OFF for name in SWITCHES)


def _said() -> bool:
    return any(name in os.environ for name in SWITCHES)


class NoTelemetry:
    """Switches the reports off while attached. CrewAI asks again for each of them."""

    def __init__(self) -> None:
        self._ours = False

    def install(self) -> None:
        if not _said():
            os.environ[SWITCHES[0]] = "true"
            self._ours = True

    def remove(self) -> None:
        """Leave the environment as it was."""
        if self._ours:
            os.environ.pop(SWITCHES[0], None)
            self._ours = False
