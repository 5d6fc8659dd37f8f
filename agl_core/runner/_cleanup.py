"""Losses of ended attempts: late spans, failures, threads that still run."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from agl_core import semconv
from agl_core.clocks import new_id, wall_ns
from agl_core.errors import StoreError
from agl_core.interfaces import Store
from agl_core.types import Attempt, Failure, FailureKind, Losses, Rollout, Span, SpanKind


class LossCounter:
    """Counts all losses, and those since the last `take`; thread-safe, as agents' threads count."""

    def __init__(self) -> None:
        self.losses = Losses()
        self._untaken = Losses()
        self._lock = threading.Lock()

    def count(self, cause: str, n: int = 1) -> None:
        with self._lock:
            self.losses.add(cause, n)
            self._untaken.add(cause, n)

    def take(self) -> Losses:
        """Return the losses since the last call."""
        with self._lock:
            taken, self._untaken = self._untaken, Losses()
        return taken

    def put_back(self, taken: Losses) -> None:
        """Return losses that could not be stored, for the next `take`."""
        with self._lock:
            self._untaken.merge(taken)


def span_of(losses: Losses, attempt: Attempt, *, after: int) -> Span:
    """Return a span that contains losses, the last one of its attempt.

    Args:
        losses: The losses to store.
        attempt: The attempt to store them with; they may belong to other attempts.
        after: Highest sequence number of the attempt's spans.
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
    """Counts remnants and late spans, logs failures, and delivers late rewards to the store."""

    def __init__(self, store: Store, counter: LossCounter) -> None:
        self._store = store
        self._loss_counter = counter
        self._remnants: list[Remnant] = []
        self._seen_remnants: set[str] = set()
        self._seen_failures: set[tuple[FailureKind, str]] = set()

    @property
    def abandoned(self) -> int:
        """The number of abandoned threads and tasks that still run."""
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
        """Log each kind and type of failure once, without messages, which may contain prompts."""
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
        """Count or deliver a span of an ended attempt; called in the thread that recorded it."""
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
        """Send a late reward to the store, which decides whether it is accepted."""
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
