"""Protocols of the store: for components, and with the lifecycle that `agl_core.app` manages."""

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
    """Durable store of rollouts, attempts, spans and resources; most methods take a batch.

    Every method may be called from any task of the event loop on which the store was opened. Ids
    sort by time. Terminal states are final. All writes are atomic and survive a crash once
    acknowledged.
    """

    async def enqueue(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Queue rollouts. A rollout that exists with equal content is unchanged (idempotent).

        Raises:
            StoreError: an id exists with other content.
        """
        ...

    async def claim(
        self, worker: str, *, limit: int = 1, timeout_s: float | None = None
    ) -> list[Claim]:
        """Claim up to `limit` queued rollouts, oldest first, each with a new fenced attempt.

        Waits until at least one is queued; returns an empty list after `timeout_s`.
        """
        ...

    async def heartbeat(self, attempt_ids: Sequence[str]) -> list[str]:
        """Extend the leases of running attempts; return the ids that are no longer running."""
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
        """End, seal and record an attempt in one atomic write, and update its rollout.

        A failure whose kind is in ``limits.retry_on`` re-queues the rollout while attempts remain.
        A repeated equal request returns the stored attempt.

        Raises:
            StaleAttemptError: the attempt ended in another way, or a newer attempt replaced it.
        """
        ...

    async def cancel(self, rollout_ids: Sequence[str], *, reason: str) -> list[Rollout]:
        """Cancel rollouts that are not final; their running attempts end as CANCELLED."""
        ...

    async def add_spans(self, spans: Sequence[Span]) -> Ingest:
        """Record spans of running attempts in one write; count late and repeated ones."""
        ...

    async def spans(
        self, rollout_ids: Sequence[str], *, attempt_id: str | None = None
    ) -> list[Span]:
        """Return the spans of rollouts or of one attempt, by rollout id, then in stable order."""
        ...

    async def rollouts(self, query: RolloutQuery) -> list[Rollout]:
        """Return one page of rollouts with their attempts, by ascending id."""
        ...

    async def wait(
        self, rollout_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[Rollout]:
        """Wait, without polling, until every rollout is final and its last attempt is sealed.

        Returns the final rollouts in the order of `rollout_ids`; fewer only after `timeout_s`.

        Raises:
            StoreError: an id does not exist.
        """
        ...

    async def consume(self, rollout_ids: Sequence[str]) -> int:
        """Mark final rollouts as used for training, so that retention may drop their spans."""
        ...

    async def publish(self, resources: Resources) -> Resources:
        """Store a new immutable version and return it with its number.

        If the content equals the latest version's, apart from number and time, the latest version
        is returned instead.
        """
        ...

    async def resources(self, version: int | None = None) -> Resources | None:
        """Return one version, or the latest; None if the store has no version.

        Raises:
            StoreError: the version does not exist.
        """
        ...


class StoreLifecycle(Store, Protocol):
    """A store with its lifecycle, for `agl_core.app`."""

    async def open(self) -> None:
        """Open the storage, start the watchdog, re-queue attempts that a crash left running."""
        ...

    async def close(self) -> None:
        """Flush and stop; idempotent."""
        ...

    async def lead(self, instance: str, *, lease_s: float) -> None:
        """Take or renew the lease of the store's only trainer for `lease_s`; 0 releases it.

        The lease survives a restart of the store. Releasing another instance's lease does nothing.

        Raises:
            LeadHeldError: a StoreError that names the instance with the lease and its expiry.
        """
        ...
