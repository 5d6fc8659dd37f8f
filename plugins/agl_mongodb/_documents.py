"""The documents of a database as `Records`: reads, and writes that are kept until the commit."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from agl_stores import key, unkey
from bson import ObjectId
from msgspec.structs import replace
from pymongo import ASCENDING, DESCENDING, ReturnDocument

from agl_core.store import ATTEMPTS, RESOURCES, ROLLOUTS, Codec, Lead, Owner, Records, encode
from agl_core.types import Attempt, Resources, Rollout, RolloutQuery, RolloutStatus
from agl_mongodb._connect import Collections, Document

T = TypeVar("T")
_LEADS: Final = Codec(Lead)
_RESERVED_S: Final = 10.0
_MOST_IDS: Final = 1000
"""Ids in one query."""
_MOST_DOCUMENTS: Final = 2**31 - 1


@dataclass(slots=True)
class AttemptDocument:
    """An attempt inside the document of its rollout."""

    body: bytes
    running: bool
    due_at: float
    digest: bytes

    def document(self, attempt_id: str) -> Document:
        return {
            "id": key(attempt_id),
            "body": self.body,
            "running": self.running,
            "due_at": self.due_at,
            "digest": self.digest,
        }


@dataclass(slots=True)
class RolloutDocument:
    """The document of a rollout; bodies are bytes, so that every read makes records of its own."""

    id: str
    body: bytes
    status: str
    consumed: bool = False
    number: int = sys.maxsize
    """Position in the queue; a new rollout gets its number when it is inserted."""
    seen: ObjectId | None = None
    """The write that the document had when it was read; None if it is new."""
    attempts: dict[str, AttemptDocument] = field(default_factory=dict[str, AttemptDocument])
    reserved: bool = False
    rewritten: bool = False
    """Whether `body` is not that of the document."""

    @classmethod
    def of(cls, document: Document) -> RolloutDocument:
        return cls(
            id=unkey(document["_id"]),
            body=document["body"],
            status=document["status"],
            consumed=document["consumed"],
            number=document["number"],
            seen=document["write"],
            attempts={
                unkey(one["id"]): AttemptDocument(
                    one["body"], one["running"], one["due_at"], one["digest"]
                )
                for one in document["attempts"]
            },
        )

    def rollout(self) -> Rollout:
        return replace(
            ROLLOUTS.decode(self.body),
            status=RolloutStatus(self.status),
            consumed=self.consumed,
            attempts=tuple(ATTEMPTS.decode(one.body) for one in self.attempts.values()),
        )

    @property
    def due_at(self) -> float:
        return min((one.due_at for one in self.attempts.values() if one.running), default=math.inf)

    @property
    def running(self) -> bool:
        return any(one.running for one in self.attempts.values())

    def changing(self) -> Document:
        """Return the fields that change, for an update of the document."""
        fields: Document = {
            "status": self.status,
            "consumed": self.consumed,
            "attempts": [one.document(known) for known, one in self.attempts.items()],
            "reserved_until": 0.0,
        }
        if self.rewritten:
            fields["body"] = self.body
        return {**fields, "due_at": self.due_at} if self.running else fields


class Documents(Records):
    """`Records` that read the database and keep all writes, which `Committer` writes.

    Nothing of the database is locked: the committer checks that what was read is still so, and
    otherwise the caller begins again. Only queued rollouts that a worker claims are reserved, so
    that workers of several processes do not read the same ones.
    """

    def __init__(self, collections: Collections, *, now: float | None = None) -> None:
        """Build records.

        Args:
            collections: The collections of the store.
            now: Unix seconds of a write; None for a read, which reserves nothing.
        """
        self._in = collections
        self._now = now
        self._rows: dict[str, RolloutDocument] = {}
        self._absent: set[str] = set()
        self._rollout_of: dict[str, str] = {}
        self._lead: tuple[ObjectId | None, Lead | None] | None = None
        self.reserved: list[str] = []
        """Keys of the reserved rollouts."""
        self.changed: dict[str, RolloutDocument] = {}
        self.spans_added: dict[str, dict[str, bytes]] = {}
        """New spans by attempt."""
        self.spans_replaced: dict[str, dict[str, bytes]] = {}
        """Spans of the database that get another body, by attempt."""
        self.spans_dropped: dict[str, set[str] | None] = {}
        """Spans of the database that are deleted, by attempt; None for all of the attempt."""
        self.resources_added: dict[int, Resources] = {}
        self.resources_rewritten: dict[int, Resources] = {}
        self.lead_saved = False

    @property
    def lead_change(self) -> tuple[ObjectId | None, Lead | None]:
        """The write of the lead that was read, and the new lead."""
        assert self._lead is not None
        return self._lead

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        parts = (self.changed, self.spans_added, self.spans_dropped, self.resources_added)
        return not any(parts) and not self.resources_rewritten and not self.lead_saved

    def row(self, rollout_id: str) -> RolloutDocument:
        self._load_missing([rollout_id])
        return self._rows[rollout_id]

    def _take(self, document: Document) -> RolloutDocument:
        """Return the row of a document, as this write has changed it."""
        rollout_id = unkey(document["_id"])
        if rollout_id not in self._rows:
            row = self._rows[rollout_id] = RolloutDocument.of(document)
            self._rollout_of.update(dict.fromkeys(row.attempts, rollout_id))
        return self._rows[rollout_id]

    def _load_missing(self, ids: Iterable[str]) -> None:
        missing = [one for one in dict.fromkeys(ids) if one not in self._rows]
        missing = [one for one in missing if one not in self._absent]
        for piece in pieces([key(one) for one in missing]):
            for document in self._in.rollouts.find({"_id": {"$in": piece}}):
                self._take(document)
        self._absent.update(one for one in missing if one not in self._rows)

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        self._load_missing(ids)
        return {one: self._rows[one].rollout() for one in ids if one in self._rows}

    def select(self, query: RolloutQuery) -> list[Rollout]:
        if query.limit <= 0:
            return []
        wanted: Document = {}
        if query.ids:
            wanted["_id"] = {"$in": [key(one) for one in query.ids]}
        if query.after_id is not None:
            wanted.setdefault("_id", {})["$gt"] = key(query.after_id)
        for name in ("run_id", "group_id", "mode"):
            given = getattr(query, name)
            if given is not None:
                wanted[name] = key(given)
        if query.statuses:
            wanted["status"] = {"$in": [each.value for each in query.statuses]}
        found = self._in.rollouts.find(wanted).sort("_id", ASCENDING)
        return [RolloutDocument.of(each).rollout() for each in found.limit(_bounded(query.limit))]

    def queued(self, limit: int) -> list[Rollout]:
        if self._now is None:
            found = self._in.rollouts.find({"status": "queued"}).sort("number", ASCENDING)
            return [RolloutDocument.of(each).rollout() for each in found.limit(_bounded(limit))]
        rows = [row for row in self._rows.values() if row.status == "queued" and not row.reserved]
        rows = sorted(rows, key=lambda row: row.number)[:limit]
        while len(rows) < limit and (row := self._reserve()) is not None:
            rows.append(row)
        return [row.rollout() for row in rows]

    def _reserve(self) -> RolloutDocument | None:
        """Reserve the first queued rollout that no other process has reserved."""
        assert self._now is not None
        document = self._in.rollouts.find_one_and_update(
            {
                "status": "queued",
                "reserved_until": {"$lt": self._now},
                "_id": {"$nin": [key(one) for one in self._rows]},
            },
            {"$set": {"reserved_until": self._now + _RESERVED_S}},
            sort=[("number", ASCENDING)],
            return_document=ReturnDocument.AFTER,
        )
        if document is None:
            return None
        self.reserved.append(document["_id"])
        row = self._take(document)
        row.reserved = True
        return row

    def running(self, *, due_by: float) -> list[Rollout]:
        for document in self._in.rollouts.find({"due_at": {"$lte": due_by}}):
            self._take(document)
        due = [row for row in self._rows.values() if row.running and row.due_at <= due_by]
        return [row.rollout() for row in sorted(due, key=lambda row: row.number)]

    def next_due(self) -> float:
        first = self._in.rollouts.find_one(
            {"due_at": {"$gte": -math.inf}, "_id": {"$nin": [key(one) for one in self._rows]}},
            sort=[("due_at", ASCENDING)],
        )
        known = [row.due_at for row in self._rows.values()]
        return min([*known, math.inf if first is None else first["due_at"]])

    def _owning(self, attempt_id: str) -> RolloutDocument | None:
        if attempt_id not in self._rollout_of:
            document = self._in.rollouts.find_one({"attempts.id": key(attempt_id)})
            if document is not None:
                self._take(document)
        rollout_id = self._rollout_of.get(attempt_id)
        return None if rollout_id is None else self._rows[rollout_id]

    def owner(self, attempt_id: str) -> Owner | None:
        row = self._owning(attempt_id)
        return None if row is None else Owner(row.id, row.attempts[attempt_id].running)

    def digest(self, attempt_id: str) -> bytes:
        row = self._owning(attempt_id)
        assert row is not None
        return row.attempts[attempt_id].digest

    def add_rollout(self, rollout: Rollout) -> None:
        self._absent.discard(rollout.id)
        row = RolloutDocument(rollout.id, encode(rollout), rollout.status.value)
        self._rows[rollout.id] = self.changed[rollout.id] = row

    def save_rollout(self, rollout: Rollout) -> None:
        row = self.row(rollout.id)
        row.status, row.consumed = rollout.status.value, rollout.consumed
        self.changed[rollout.id] = row

    def rewrite(self, record: Rollout | Resources) -> None:
        if isinstance(record, Resources):
            self.resources_rewritten[record.version] = record
            return
        row = self.row(record.id)
        row.body, row.rewritten = encode(record), True
        self.changed[row.id] = row

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        row = self.row(attempt.rollout_id)
        running = not attempt.status.final
        row.attempts[attempt.id] = AttemptDocument(encode(attempt), running, due_at, digest)
        self._rollout_of[attempt.id] = row.id
        self.changed[row.id] = row

    def drop_attempt(self, attempt_id: str) -> None:
        row = self._owning(attempt_id)
        assert row is not None
        del row.attempts[attempt_id]
        del self._rollout_of[attempt_id]
        self.changed[row.id] = row

    def _known(self, attempt_id: str, ids: Collection[str]) -> set[str]:
        """Return those of the ids that the attempt has."""
        known = self._written(attempt_id).keys() & set(ids)
        if attempt_id not in self.spans_dropped:
            known |= self._stored(attempt_id, ids)
        return known

    def _written(self, attempt_id: str) -> dict[str, bytes]:
        """Return the spans of an attempt that this write adds or replaces."""
        changes = (self.spans_replaced, self.spans_added)
        return {known: blob for each in changes for known, blob in each.get(attempt_id, {}).items()}

    def _stored(self, attempt_id: str, ids: Collection[str]) -> set[str]:
        """Return those of the ids that the database has for the attempt."""
        stored: set[str] = set()
        for piece in pieces([key(one) for one in ids]):
            wanted = {"attempt": key(attempt_id), "id": {"$in": piece}}
            stored |= {unkey(each["id"]) for each in self._in.spans.find(wanted, {"id": 1})}
        return stored

    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        known = self._known(attempt_id, set(ids))
        return sum(one in known for one in ids)

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        known = self._known(attempt_id, {span_id for span_id, _ in spans})
        fresh: dict[str, bytes] = {}
        for span_id, blob in spans:
            if span_id not in known:
                fresh.setdefault(span_id, blob)
        replaced = self._replaceable(attempt_id).intersection(fresh)
        for span_id, blob in fresh.items():
            change = self.spans_replaced if span_id in replaced else self.spans_added
            change.setdefault(attempt_id, {})[span_id] = blob
        return len(fresh)

    def _replaceable(self, attempt_id: str) -> set[str]:
        """Return the spans that `drop_spans` deletes unless spans with their ids are added.

        Only those that are in the database now: another process may add spans meanwhile.
        """
        if attempt_id not in self.spans_dropped:
            return set()
        dropped = self.spans_dropped[attempt_id]
        if dropped is None:
            found = self._in.spans.find({"attempt": key(attempt_id)}, {"id": 1})
            dropped = self.spans_dropped[attempt_id] = {unkey(each["id"]) for each in found}
        return dropped

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        self._load_missing(rollout_ids)
        rows = [self._rows[one] for one in sorted(set(rollout_ids)) if one in self._rows]
        attempts = [one for row in rows for one in row.attempts if attempt_id in (None, one)]
        for piece in pieces(attempts, _MOST_IDS // 10):
            blobs = {one: list(self._written(one).values()) for one in piece}
            kept = [key(one) for one in piece if one not in self.spans_dropped]
            wanted = {"attempt": {"$in": kept}}
            for document in self._in.spans.find(wanted, {"attempt": 1, "body": 1}):
                blobs[unkey(document["attempt"])].append(document["body"])
            yield from blobs.values()

    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        for rollout_id in rollout_ids:
            for attempt_id in self.row(rollout_id).attempts:
                self.spans_dropped[attempt_id] = None
                self.spans_added.pop(attempt_id, None)
                self.spans_replaced.pop(attempt_id, None)

    def add_resources(self, resources: Resources) -> None:
        self.resources_added[resources.version] = resources

    def resources(self, version: int) -> Resources | None:
        changes = {**self.resources_added, **self.resources_rewritten}
        if version in changes:
            return RESOURCES.decode(encode(changes[version]))
        found = self._in.resources.find_one({"_id": version})
        return None if found is None else RESOURCES.decode(found["body"])

    def latest_version(self) -> int:
        found = self._in.resources.find_one({}, {"_id": 1}, sort=[("_id", DESCENDING)])
        return max([*self.resources_added, 0 if found is None else found["_id"]])

    def lead(self) -> Lead | None:
        if self._lead is None:
            found = self._in.single.find_one({"_id": "lead"})
            known = (
                (None, None) if found is None else (found["write"], _LEADS.decode(found["body"]))
            )
            self._lead = known
        return self._lead[1]

    def save_lead(self, lead: Lead | None) -> None:
        self.lead()
        assert self._lead is not None
        self._lead = (self._lead[0], lead)
        self.lead_saved = True


def pieces(ids: Sequence[T], size: int = _MOST_IDS) -> Iterator[Sequence[T]]:
    """Yield pieces that fit into one query."""
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


def _bounded(limit: int) -> int:
    return min(limit, _MOST_DOCUMENTS)


def new_document(
    row: RolloutDocument, rollout: Rollout, *, number: int, write: ObjectId
) -> Document:
    """Return the document of a new rollout."""
    fixed: dict[str, Any] = {
        "_id": key(row.id),
        "number": number,
        "run_id": key(rollout.run_id),
        "group_id": key(rollout.group_id),
        "mode": key(rollout.mode),
        "body": row.body,
        "write": write,
    }
    return {**fixed, **row.changing()}
