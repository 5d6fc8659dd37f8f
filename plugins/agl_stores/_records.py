"""The records of a rollout as they are copied: read from any store, written into a `BaseStore`."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from agl_core.interfaces import Store
from agl_core.store import (
    BaseStore,
    Codec,
    MemoryStore,
    Operations,
    Records,
    encode,
    encode_span,
)
from agl_core.types import Resources, Rollout, RolloutQuery, RolloutStatus

KINDS: Final = ("resources", "rollouts", "attempts", "spans")
_SUMS: Final = 2**256


class _Header(msgspec.Struct, frozen=True):
    """The ids of an encoded span."""

    id: str
    attempt_id: str


_HEADERS: Final = Codec(_Header, name="Span")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecords:
    """A rollout with all that a store keeps of it."""

    rollout: Rollout
    finishes: Mapping[str, bytes] | None
    """`Records.digest` by attempt; None if the store does not give them."""
    spans: Mapping[str, Sequence[tuple[str, bytes]]]
    """Ids and blobs of spans by attempt."""


class Digests:
    """Number and digest of records by kind, whatever their order.

    The digest of a kind is the sum of the SHA-256 digests of its records.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._sums: dict[str, int] = {}

    def digest(self, kind: str) -> str:
        return f"{self._sums.get(kind, 0):064x}"

    def same(self, other: Digests, kind: str) -> bool:
        return (self.counts[kind], self.digest(kind)) == (other.counts[kind], other.digest(kind))

    def add_resources(self, resources: Resources) -> None:
        self._add("resources", encode(resources, canonical=True))

    def add_rollout(self, records: RolloutRecords, *, finishes: bool) -> None:
        """Add a rollout, its attempts and spans, and what repeats a `finish` if `finishes`."""
        rollout, known = records.rollout, records.finishes or {}
        order = [attempt.id for attempt in rollout.attempts]
        bare = replace(rollout, attempts=())
        self._add("rollouts", encode(bare, canonical=True), encode(order))
        for attempt in rollout.attempts:
            digest = known.get(attempt.id, b"") if finishes else b""
            self._add("attempts", encode(attempt, canonical=True), digest)
            for span_id, blob in records.spans.get(attempt.id, ()):
                self._add("spans", encode([attempt.id, span_id]), blob)

    def _add(self, kind: str, *parts: bytes) -> None:
        content = hashlib.sha256()
        for part in parts:
            content.update(len(part).to_bytes(8, "big"))
            content.update(part)
        self.counts[kind] += 1
        self._sums[kind] = (
            self._sums.get(kind, 0) + int.from_bytes(content.digest(), "big")
        ) % _SUMS


async def read_rollouts(store: Store, ids: Sequence[str]) -> list[RolloutRecords]:
    """Return the records of the existing ones of these rollouts."""
    if isinstance(store, BaseStore):
        return await store.read(lambda records: list(_read(records, ids)))
    found = await store.rollouts(RolloutQuery(ids=tuple(ids), limit=len(ids)))
    spans = await store.spans([rollout.id for rollout in found])
    by_attempt = _by_attempt(encode_span(span) for span in spans)
    return [RolloutRecords(rollout=each, finishes=None, spans=by_attempt) for each in found]


def _read(records: Records, ids: Sequence[str]) -> Iterator[RolloutRecords]:
    found = records.rollouts(ids)
    blobs = (blob for attempt in records.spans(list(found), None) for blob in attempt)
    by_attempt = _by_attempt(blobs)
    for rollout in found.values():
        finishes = {attempt.id: records.digest(attempt.id) for attempt in rollout.attempts}
        spans = {each: by_attempt.get(each, []) for each in finishes}
        yield RolloutRecords(rollout=rollout, finishes=finishes, spans=spans)


def _by_attempt(blobs: Iterable[bytes]) -> dict[str, list[tuple[str, bytes]]]:
    found: dict[str, list[tuple[str, bytes]]] = {}
    for blob in blobs:
        header = _HEADERS.decode(blob)
        found.setdefault(header.attempt_id, []).append((header.id, bytes(blob)))
    return found


async def ended(records: RolloutRecords) -> RolloutRecords:
    """Return a rollout that is running as a crash at the end of its lease leaves it.

    Its attempt was lost, and it is queued again. The time is that of the lease, so the result is
    always the same.
    """
    rollout = records.rollout
    if rollout.status is not RolloutStatus.RUNNING:
        return records

    def recover(rows: Records) -> Rollout:
        insert(rows, records)
        Operations(rows, rollout.attempts[-1].lease_until).requeue_running()
        return rows.rollouts([rollout.id])[rollout.id]

    return dataclasses.replace(records, rollout=await MemoryStore().write(recover))


def insert(rows: Records, records: RolloutRecords) -> None:
    """Insert a rollout that is not there, with its attempts and spans."""
    rollout, finishes = records.rollout, records.finishes or {}
    rows.add_rollout(replace(rollout, attempts=(), status=RolloutStatus.QUEUED, consumed=False))
    for attempt in rollout.attempts:
        due_at = min(attempt.lease_until, attempt.deadline_at)
        rows.save_attempt(attempt, due_at=due_at, digest=finishes.get(attempt.id, b""))
        rows.add_spans(attempt.id, records.spans.get(attempt.id, ()))
    rows.save_rollout(rollout)
