"""What a store's medium implements: `Records`, its rows inside one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from agl_core.types import Attempt, Resources, Rollout, RolloutQuery


@dataclass(frozen=True, slots=True)
class Owner:
    """To which rollout an attempt belongs, and whether it runs."""

    rollout_id: str
    running: bool


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """Which trainer leads the store."""

    instance: str
    until: float
    lease_s: float
    """For how long it was last asked; a clock that was set back does not make it longer."""


class Records(ABC):
    """The rows of a medium as one transaction sees and changes them.

    All methods are synchronous and are called by one thread at a time. A read sees the transaction's
    own writes. What a method returns shares nothing with the medium or with what was passed in:
    keep records as bytes (`agl_core.store.encode`, and ``ROLLOUTS.decode`` and the like), which
    also carry every text and number unchanged.

    Callers check first and write last: an id that is passed to a method that changes a row exists,
    one that is passed to ``add_rollout`` or ``add_resources`` does not. Ids are any text, lone
    surrogates included.
    """

    @abstractmethod
    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        """Those of the rollouts that exist, by id, each with all its attempts, oldest first."""

    @abstractmethod
    def select(self, query: RolloutQuery) -> list[Rollout]:
        """At most ``query.limit`` rollouts that match the query, by ascending id.

        Ids are compared as text. ``after_id`` is exclusive; empty ``ids`` and ``statuses`` match all.
        """

    @abstractmethod
    def queued(self, limit: int) -> list[Rollout]:
        """The first rollouts with status QUEUED, in the order in which they were added."""

    @abstractmethod
    def running(self, *, due_by: float) -> list[Rollout]:
        """Rollouts with a running attempt whose `due_at` is not later than this."""

    @abstractmethod
    def next_due(self) -> float:
        """The earliest `due_at` of all running attempts; infinity without any."""

    @abstractmethod
    def add_rollout(self, rollout: Rollout) -> None:
        """Insert a rollout that has no attempts, behind all others."""

    @abstractmethod
    def save_rollout(self, rollout: Rollout) -> None:
        """Store its status and whether it is consumed; nothing else of a rollout ever changes."""

    @abstractmethod
    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        """Insert an attempt behind the others of its rollout, or replace it; its spans stay.

        Args:
            attempt: It runs unless its status is final.
            due_at: Unix seconds; while it runs, for `running` and `next_due`.
            digest: For `digest`.
        """

    @abstractmethod
    def drop_attempt(self, attempt_id: str) -> None:
        """Delete an attempt, which has no spans."""

    @abstractmethod
    def owner(self, attempt_id: str) -> Owner | None:
        """None if the attempt does not exist."""

    @abstractmethod
    def digest(self, attempt_id: str) -> bytes:
        """What `save_attempt` was last given."""

    @abstractmethod
    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        """Insert ``(id, blob)`` pairs whose ids the attempt does not have; returns how many.

        An id may be there twice in `spans`: the first counts.
        """

    @abstractmethod
    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        """How many of the ids the attempt has."""

    @abstractmethod
    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        """The blobs of each attempt, or of the one given, in any order.

        Attempts come by the id of their rollout, then oldest first. Unknown ids have none.
        """

    @abstractmethod
    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        """Delete all spans of these rollouts."""

    @abstractmethod
    def add_resources(self, resources: Resources) -> None:
        """Insert a version of the resources."""

    @abstractmethod
    def resources(self, version: int) -> Resources | None:
        """None if there is no such version."""

    @abstractmethod
    def latest_version(self) -> int:
        """0 when nothing was published."""

    @abstractmethod
    def lead(self) -> Lead | None:
        """What `save_lead` was last given."""

    @abstractmethod
    def save_lead(self, lead: Lead | None) -> None:
        """Replace the lead; None deletes it."""
