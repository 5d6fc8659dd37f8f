"""What of a file's work may be done on the event loop instead of in a thread."""

from __future__ import annotations

import math
from typing import Final

from agl_core.clocks import monotonic

_FEW_ROWS: Final = 64
_SLOW_S: Final = 0.05
_REST: Final = 10
"""Of the loop's time, at most one part in so many goes to a slow disk."""


class Pace:
    """Lets little work through while the disk is quick.

    Handing work to a thread and its result back costs more than most of it does. But a disk may
    stall, and then nothing else on the loop would run: so whoever found it slow says so.
    """

    def __init__(self, *, ever: bool = True) -> None:
        """Begin by trusting the disk.

        Args:
            ever: False sends everything to a thread.
        """
        self._again_at = 0.0 if ever else math.inf

    def allows(self, rows: float) -> bool:
        """Whether work on about so many rows may be done here."""
        return rows <= _FEW_ROWS and monotonic() >= self._again_at

    def took(self, seconds: float) -> None:
        """Learn how long something done here took."""
        if seconds > _SLOW_S:
            self._again_at = max(self._again_at, monotonic() + _REST * seconds)
