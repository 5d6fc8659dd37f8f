"""How much work on a store's file the event loop does itself instead of a thread."""

from __future__ import annotations

import math
from typing import Final

from agl_core.clocks import monotonic

_TURN_S: Final = 0.005
"""Longest that one piece of work should keep the loop."""
_ROW_S: Final = 20e-6
"""Time per row before any was measured."""
_COMMIT_ROWS: Final = 16
"""What a transaction costs beside its rows, in rows."""
_DECAY: Final = 0.9
"""Weight of all earlier measurements when another is added."""
_STALL_S: Final = 0.05
_REST: Final = 10
"""The loop spends at most one part in so many of its time on a stalled disk."""


class Throttle:
    """Admits work to the event loop by the time that it is expected to take.

    Handing work to a thread and its result back costs more than most of it does, so work is done on
    the loop up to `_TURN_S` at a time, by the measured time per row. A disk may stall, and then
    nothing else on the loop runs: after a stall everything goes to the thread for a while.
    """

    def __init__(self, *, ever: bool = True) -> None:
        """Start with an assumed time per row.

        Args:
            ever: False admits nothing.
        """
        self._resumes_at = 0.0 if ever else math.inf
        self._rows = float(_COMMIT_ROWS)
        self._seconds = _COMMIT_ROWS * _ROW_S

    def admits(self, rows: float) -> bool:
        """Whether work on about so many rows may be done on the loop now."""
        expected_s = (rows + _COMMIT_ROWS) * self._seconds / self._rows
        return expected_s <= _TURN_S and monotonic() >= self._resumes_at

    def measured(self, rows: float, seconds: float) -> None:
        """Add the time that work on so many rows took on the loop."""
        if seconds > _STALL_S:
            self._resumes_at = max(self._resumes_at, monotonic() + _REST * seconds)
            return
        self._rows = _DECAY * self._rows + rows + _COMMIT_ROWS
        self._seconds = _DECAY * self._seconds + seconds
