"""What the operations need of a medium: synchronous, inside one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from agl_core.types import Attempt, Resources, Rollout, RolloutQuery


@dataclass(frozen=True, slots=True)
class Owner:
    """Where an attempt belongs and whether it may still be written to."""

    rollout_id: str
    running: bool


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """Who is the store's one trainer."""

    instance: str
    until: float
    lease_s: float
    """For how long it was last asked; a clock that was set back does not make it longer."""


class Records(Protocol):
    """Rows of one medium. Rollouts are read with all their attempts, oldest first."""

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        """Those that exist."""
        ...

    def select(self, query: RolloutQuery) -> list[Rollout]: ...

    def queued(self, limit: int) -> list[Rollout]:
        """First queued first."""
        ...

    def running(self, *, due_by: float) -> list[Rollout]:
        """Rollouts whose running attempt is due by then."""
        ...

    def next_due(self) -> float:
        """The earliest due time of all running attempts; infinity without any."""
        ...

    def add_rollout(self, rollout: Rollout) -> None: ...

    def save_rollout(self, rollout: Rollout) -> None:
        """Keep status and consumption; nothing else of a rollout ever changes."""
        ...

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        """Insert or replace."""
        ...

    def drop_attempt(self, attempt_id: str) -> None: ...

    def owner(self, attempt_id: str) -> Owner | None: ...

    def digest(self, attempt_id: str) -> bytes:
        """Of the finish that ended the attempt; empty when the store ended it."""
        ...

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        """Insert ``(id, blob)`` pairs whose ids the attempt does not have; returns how many."""
        ...

    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        """How many of the ids the attempt has."""
        ...

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        """Blobs of each attempt, or of one, in no particular order.

        Attempts come by the id of their rollout, then oldest first.
        """
        ...

    def drop_spans(self, rollout_ids: Sequence[str]) -> None: ...

    def add_resources(self, resources: Resources) -> None: ...

    def resources(self, version: int) -> Resources | None: ...

    def latest_version(self) -> int:
        """0 when nothing was published."""
        ...

    def lead(self) -> Lead | None: ...

    def save_lead(self, lead: Lead | None) -> None: ...
