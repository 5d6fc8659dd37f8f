"""The store: as components use it, and with the lifecycle that `agl_core.app` manages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agl_core.types import (
    Attempt,
    AttemptStatus,
    Claim,
    Failure,
    Ingest,
    Resources,
    Rollout,
    RolloutQuery,
    Span,
)


class Store(Protocol):
    """Durable record of rollouts, attempts, spans and resources. Twelve methods, batch first.

    Every method may be called from any task of the loop the store was opened on. Ids sort by time.
    Terminal states are final. All writes are atomic and survive a crash once acknowledged.
    """

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Queue rollouts. An id that exists with equal content is left alone (idempotent).

        Raises:
            StoreError: an id exists with other content.
        """
        ...

    async def claim(
        self, worker: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Claim]:
        """Hand out up to `limit` queued rollouts, oldest first, each with a fresh fenced attempt.

        Waits until at least one is there; returns an empty list after `timeout_s`.
        """
        ...

    async def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        """Extend the leases of running attempts; returns the ids that are not running any more."""
        ...

    async def finish(
        self,
        attempt_id: str,
        *,
        status: AttemptStatus,
        spans: Sequence[Span] = (),
        failure: Failure | None = None,
        output: Any = None,
    ) -> Attempt:
        """End, seal and record an attempt in one atomic write, and settle its rollout.

        A failure whose kind is in ``limits.retry_on`` re-queues the rollout while attempts remain.
        Repeating the same finish is answered with the stored attempt.

        Raises:
            StaleAttemptError: the attempt ended otherwise or was replaced by a higher fence.
        """
        ...

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        """Cancel rollouts that are not final; their running attempts end as CANCELLED."""
        ...

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        """Record spans of running attempts in one write; late and repeated ones are counted."""
        ...

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        """Spans of rollouts (of one attempt), by rollout id, then in each attempt's stable order."""
        ...

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        """Rollouts with their attempts, one page by ascending id."""
        ...

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        """Wait until every rollout is final and its last attempt sealed; pushed, not polled.

        Returns the final ones in the order asked for, all of them unless `timeout_s` passed.

        Raises:
            StoreError: an id does not exist.
        """
        ...

    async def consume(self, rollout_ids: Sequence[str]) -> int:
        """Mark final rollouts as used for training; retention may drop their spans from now on."""
        ...

    async def publish(self, resources: Resources) -> Resources:
        """Store a new immutable version and return it numbered.

        Content equal to the latest version's, number and time apart, is that version: a repeated
        request is answered with it.
        """
        ...

    async def resources(self, version: int | None = None) -> Resources | None:
        """One version, or the latest; None when there is none.

        Raises:
            StoreError: the version does not exist.
        """
        ...


class StoreLifecycle(Store, Protocol):
    """A store with its lifecycle, for `agl_core.app`."""

    async def open(self) -> None:
        """Open the medium, start the watchdog, re-queue attempts that a crash left running."""
        ...

    async def close(self) -> None:
        """Flush and stop; idempotent."""
        ...

    async def lead(self, instance: str, *, lease_s: float) -> None:
        """Become the one trainer of this store, or stay it, for `lease_s` from now; 0 gives it back.

        The lead outlives a restart of the store. Giving back what another instance holds does
        nothing.

        Raises:
            LeadHeldError: a StoreError naming the instance that holds it and until when.
        """
        ...
