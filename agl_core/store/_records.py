"""`Records`, the rows of a medium inside one transaction, and what else a store may be able to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from agl_core.errors import StoreError
from agl_core.interfaces import StoreLifecycle
from agl_core.types import Attempt, Resources, Rollout, RolloutQuery


@dataclass(frozen=True, slots=True)
class Owner:
    """The rollout of an attempt, and whether the attempt is running."""

    rollout_id: str
    running: bool


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer that leads the store."""

    instance: str
    until: float
    lease_s: float
    """Length of the lease that was last requested. It bounds `until` if the clock is set back."""


class Records(ABC):
    """The rows of a medium inside one transaction.

    All methods are synchronous and are called by one thread at a time. A read sees earlier writes
    of the same transaction. Returned records share no objects with the medium or with arguments:
    store records as bytes (`agl_core.store.encode`, ``ROLLOUTS.decode`` and the other codecs),
    which also preserve every text and number.

    Callers check ids before they write: methods that change a row get an existing id, and
    ``add_rollout`` and ``add_resources`` get a new one. An id is any text, which may include lone
    surrogates.
    """

    @abstractmethod
    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        """Return the existing rollouts by id, each with all its attempts, oldest first."""

    @abstractmethod
    def select(self, query: RolloutQuery) -> list[Rollout]:
        """Return at most ``query.limit`` rollouts that match the query, by ascending id.

        Ids are compared as text. ``after_id`` is exclusive. Empty ``ids`` and ``statuses`` match
        all rollouts.
        """

    @abstractmethod
    def queued(self, limit: int) -> list[Rollout]:
        """Return the first rollouts with status QUEUED, in the order in which they were added."""

    @abstractmethod
    def running(self, *, due_by: float) -> list[Rollout]:
        """Return the rollouts whose running attempt has a `due_at` of at most `due_by`."""

    @abstractmethod
    def next_due(self) -> float:
        """Return the earliest `due_at` of all running attempts; infinity if there are none."""

    @abstractmethod
    def add_rollout(self, rollout: Rollout) -> None:
        """Insert a rollout without attempts after all others."""

    @abstractmethod
    def save_rollout(self, rollout: Rollout) -> None:
        """Store the status and `consumed` of a rollout; its other fields never change."""

    def rewrite(self, record: Rollout | Resources) -> None:
        """Replace the stored fields of a rollout, or a version of the resources.

        For content that is stored in another form; a rollout's status, `consumed` and attempts stay.

        Raises:
            StoreError: the medium cannot replace them.
        """
        raise StoreError(f"{type(self).__name__} cannot replace the stored {record!r:.80}")

    @abstractmethod
    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        """Insert an attempt after the others of its rollout, or replace it; its spans stay.

        Args:
            attempt: The attempt; it is running unless its status is final.
            due_at: Unix seconds that `running` and `next_due` use while the attempt is running.
            digest: Value that `digest` returns.
        """

    @abstractmethod
    def drop_attempt(self, attempt_id: str) -> None:
        """Delete an attempt that has no spans."""

    @abstractmethod
    def owner(self, attempt_id: str) -> Owner | None:
        """Return the owner of an attempt; None if the attempt does not exist."""

    @abstractmethod
    def digest(self, attempt_id: str) -> bytes:
        """Return the digest of the last `save_attempt`."""

    @abstractmethod
    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        """Insert the ``(id, blob)`` pairs whose ids the attempt does not have; return their number.

        If `spans` has an id twice, the first pair is inserted.
        """

    @abstractmethod
    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        """Return how many of the ids the attempt has."""

    @abstractmethod
    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        """Yield the blobs of each attempt, or of the given one only, in any order.

        Attempts are sorted by the id of their rollout, then by age, oldest first. Unknown ids are
        skipped.
        """

    @abstractmethod
    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        """Delete all spans of these rollouts."""

    @abstractmethod
    def add_resources(self, resources: Resources) -> None:
        """Insert a version of the resources."""

    @abstractmethod
    def resources(self, version: int) -> Resources | None:
        """Return one version; None if it does not exist."""

    @abstractmethod
    def latest_version(self) -> int:
        """Return the greatest version; 0 if no resources were published."""

    @abstractmethod
    def lead(self) -> Lead | None:
        """Return the lead of the last `save_lead`."""

    @abstractmethod
    def save_lead(self, lead: Lead | None) -> None:
        """Replace the lead; None deletes it."""


@runtime_checkable
class Readable(Protocol):
    """A store that can be opened for reading only."""

    def reader(self) -> StoreLifecycle:
        """Return a read-only store, not yet open, with the same records.

        Opening it neither queues rollouts again nor ends attempts, whether or not other processes
        have the store open.
        """
        ...


class Pruned(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of what a pruning deleted, or would delete."""

    rollouts: int = 0
    """Number of rollouts that had spans."""
    spans: int = 0
    size: int = 0
    """Bytes of the spans' records."""
    kept: int = 0
    """Number of requested rollouts that were not pruned, because they are not final."""

    def __add__(self, other: Pruned) -> Pruned:
        return Pruned(
            rollouts=self.rollouts + other.rollouts,
            spans=self.spans + other.spans,
            size=self.size + other.size,
            kept=self.kept + other.kept,
        )


@runtime_checkable
class Prunable(Protocol):
    """A store that can permanently delete spans, whether or not it is open."""

    async def prune(self, rollout_ids: Sequence[str], *, dry_run: bool = False) -> Pruned:
        """Delete the spans of the final rollouts among the given ones, and mark these as consumed.

        Rollouts, attempts, failures and outputs stay.

        Args:
            rollout_ids: The rollouts; unknown ids and rollouts that are not final are ignored.
            dry_run: Count only.
        """
        ...
