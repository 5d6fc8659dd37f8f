"""What is left of attempts that ended: late spans, ways to fail, threads that go on."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from agl_core import semconv
from agl_core.errors import StoreError
from agl_core.interfaces import Store
from agl_core.runner.loss_counter import LossCounter
from agl_core.types import Attempt, Failure, FailureKind, Rollout, Span, SpanKind

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
