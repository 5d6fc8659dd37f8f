"""What a runner loses, counted by cause, and how it reaches a trainer elsewhere."""

from __future__ import annotations

import threading

from agl_core import semconv
from agl_core.clocks import wall_ns
from agl_core.types import Attempt, Losses, Span, SpanKind
from agl_core.types.ids import new_id


class LossCounter:
    """All losses, and those that nobody has taken yet. Agents' threads count too."""

    def __init__(self) -> None:
        self.losses = Losses()
        self._untaken = Losses()
        self._lock = threading.Lock()

    def count(self, cause: str, n: int = 1) -> None:
        with self._lock:
            self.losses.add(cause, n)
            self._untaken.add(cause, n)

    def take(self) -> Losses:
        """What has been lost since the last time."""
        with self._lock:
            taken, self._untaken = self._untaken, Losses()
        return taken

    def put_back(self, taken: Losses) -> None:
        """It did not arrive: the next one to take gets it."""
        with self._lock:
            self._untaken.merge(taken)


def span_of(losses: Losses, attempt: Attempt, *, after: int) -> Span:
    """A span that carries losses, last in the order of its attempt.

    Args:
        losses: Those since the attempt that ended before.
        attempt: The carrier; most of what is carried need not be its own.
        after: Highest sequence number among its spans.
    """
    now_ns = wall_ns()
    return Span(
        id=new_id("span"),
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.id,
        kind=SpanKind.MESSAGE,
        name=semconv.AGL_LOST,
        sequence=after + 1,
        start_ns=now_ns,
        end_ns=now_ns,
        status="ok",
        attributes={semconv.AGL_LOST: dict(losses.counts)},
    )
