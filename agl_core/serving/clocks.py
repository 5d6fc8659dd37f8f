"""Clocks of two machines that differ."""

from __future__ import annotations

import math

from agl_core.clocks import wall


class Skew:
    """How far a server's clock is ahead of ours, as far as its answers prove it.

    A server told its time `told` between the moments `asked` and `heard` of our clock, so it is
    ahead by at least ``told - heard`` and at most ``told - asked``. Of these the value nearest to 0
    is taken: clocks that agree are never corrected, however slow the line.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0
        """By the latest answer; negative where the server's clock is behind."""

    def now(self) -> float:
        return wall()

    def hear(self, told: str | None, *, asked: float) -> None:
        """Take in an answer whose head has just arrived.

        Args:
            told: Unix seconds, as text; anything else is ignored.
            asked: What `now` gave before the question was sent.
        """
        try:
            server = float(told or "")
        except ValueError:
            return
        if not math.isfinite(server):
            return
        least, most = server - self.now(), server - asked
        self.ahead_s = max(least, min(most, 0.0))
