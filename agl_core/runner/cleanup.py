"""What is left of attempts that ended: late spans, ways to fail, threads that still run."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from agl_core import semconv
from agl_core.clocks import wall_ns
from agl_core.errors import StoreError
from agl_core.interfaces import Store
from agl_core.types import Attempt, Failure, FailureKind, Losses, Rollout, Span, SpanKind
from agl_core.types.ids import new_id


class LossCounter:
    """All losses, and those not taken yet. Agents' threads count too."""

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


_log = logging.getLogger(__name__)

Remnant = threading.Thread | asyncio.Task[Any]
"""User code that could not be stopped."""


class Cleanup:
    """Counts it, and delivers what the store may still take."""

    def __init__(self, store: Store, counter: LossCounter) -> None:
        self._store = store
        self._loss_counter = counter
        self._remnants: list[Remnant] = []
        self._seen_remnants: set[str] = set()
        self._seen_failures: set[tuple[FailureKind, str]] = set()

    @property
    def abandoned(self) -> int:
        """Threads and tasks that run still."""
        self._remnants = [each for each in self._remnants if _runs(each)]
        return len(self._remnants)

    def abandon(self, remnant: Remnant) -> None:
        self._remnants.append(remnant)
        kind = "thread" if isinstance(remnant, threading.Thread) else "task"
        self._loss_counter.count(f"abandoned_{kind}")
        if kind not in self._seen_remnants:
            self._seen_remnants.add(kind)
            _log.warning(
                "A %s of user code could not be stopped and is left to itself; more of these are "
                "counted, not logged",
                kind,
            )

    def report(self, attempt: Attempt, failure: Failure) -> None:
        """Log each way to fail once, and without messages: they may hold prompts."""
        _log.debug("Attempt %s failed: %s", attempt.id, failure.message)
        way = (failure.kind, failure.type)
        if way not in self._seen_failures:
            self._seen_failures.add(way)
            _log.warning(
                "Attempt %s failed: %s (%s); more of these are counted, not logged",
                attempt.id,
                failure.kind.value,
                failure.type,
            )

    def late(self, rollout: Rollout, loop: asyncio.AbstractEventLoop, span: Span) -> None:
        """A span of an attempt that has ended, in the thread that made it."""
        if (lost := span.attributes.get(semconv.AGL_LOST)) is not None:
            for cause, count in lost.items():
                self._loss_counter.count(cause, count)
            return
        graced = span.kind is SpanKind.REWARD and rollout.limits.reward_grace_s > 0
        if graced and not loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._deliver(span), loop)
        else:
            self._loss_counter.count(f"late_{span.kind.value}")

    async def _deliver(self, span: Span) -> None:
        """The store decides whether a late reward still counts."""
        try:
            late = (await self._store.add_spans([span])).late
        except StoreError:
            _log.warning("The store did not take a late reward", exc_info=True)
            late = 1
        self._loss_counter.count(f"late_{span.kind.value}", late)


def _runs(remnant: Remnant) -> bool:
    if isinstance(remnant, threading.Thread):
        return remnant.is_alive()
    return not remnant.done()
