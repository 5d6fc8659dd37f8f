"""Writing of what an operation changed: in a transaction, or in an order that a crash may cut."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from agl_stores import key
from bson import ObjectId
from pymongo import MongoClient, ReturnDocument, UpdateOne
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, PyMongoError

from agl_core.clocks import monotonic
from agl_core.errors import StoreError
from agl_core.store import ROLLOUTS, Records, encode
from agl_mongodb._connect import Collections, Document
from agl_mongodb._documents import Documents, RolloutDocument, new_document, pieces
from agl_mongodb._errors import Conflict, MongoAddress, as_store_error, is_conflict

T = TypeVar("T")
_MOST_CONFLICTS: Final = 100
_PAUSE_S: Final = 0.01
_MOST_PAUSES: Final = 20
_SPANS_PER_WRITE: Final = 500


class Committer:
    """Runs operations one after another, and writes what each of them changed.

    Every changed document has the id of its last write. A write changes a document only if it still
    has the write that the operation has read; else the operation runs again.

    With transactions, all changes of an operation take effect or none. Without, they are written in
    this order: spans; the check that their attempts still run; resources; new rollouts; changed
    rollouts, each with its attempts in one document; the lead; records in another form; deletions
    of spans. A conflict takes back what was written. A crash in between leaves spans of attempts
    that are running, or some of several rollouts changed, each of them wholly: rollouts that were
    claimed and not received are queued again when their leases end.
    """

    def __init__(
        self,
        client: MongoClient[Document],
        collections: Collections,
        shown: MongoAddress,
        *,
        transactions: bool,
        retry_s: float,
    ) -> None:
        self._client = client
        self._in = collections
        self._shown = shown
        self._transactions = transactions
        self._retry_s = retry_s

    def run(self, work: Callable[[Records], T], now: Callable[[], float]) -> T:
        """Run an operation until its changes are written.

        Raises:
            StoreError: the server failed, or other processes always wrote the same first.
        """
        for conflicts in range(_MOST_CONFLICTS):
            documents = Documents(self._in, now=now())
            try:
                value = work(documents)
                if not documents.empty:
                    self._write(documents)
            except Conflict:
                self._release(documents)
                longest_s = _PAUSE_S * min(1 + conflicts, _MOST_PAUSES)
                time.sleep(longest_s * random.random())  # noqa: S311  spreads the processes
            except PyMongoError as error:
                self._release(documents)
                raise as_store_error(error, self._shown) from None
            except BaseException:
                self._release(documents)
                raise
            else:
                if documents.empty:
                    self._release(documents)
                return value
        raise StoreError(
            f"The store at {self._shown.address} is busy: other processes changed the same records "
            f"{_MOST_CONFLICTS} times; use fewer processes"
        )

    def _release(self, documents: Documents) -> None:
        """Let other workers claim what was reserved; if the server is away, they can later."""
        if documents.reserved:
            with contextlib.suppress(PyMongoError):
                self._in.rollouts.update_many(
                    {"_id": {"$in": documents.reserved}, "status": "queued"},
                    {"$set": {"reserved_until": 0.0}},
                )

    def _write(self, documents: Documents) -> None:
        """Write the changes.

        Raises:
            Conflict: another process changed the same records.
            PyMongoError: the server failed.
        """
        changes = Changeset(self._in, documents)
        if self._transactions:
            try:
                with self._client.start_session() as session:
                    session.with_transaction(changes.write)
            except PyMongoError as error:
                if is_conflict(error):
                    raise Conflict from error
                raise
            return
        try:
            changes.write(None)
        except Conflict:
            changes.undo()
            raise
        except AutoReconnect:
            self._settle(changes)
        except PyMongoError as error:
            changes.undo()
            if is_conflict(error):
                raise Conflict from error
            raise

    def _settle(self, changes: Changeset) -> None:
        """Complete a write whose connection was lost: keep it if it took effect, else undo it.

        Raises:
            Conflict: it was undone; the operation runs again.
            StoreError: the server was away for too long.
        """
        end = monotonic() + self._retry_s
        while True:
            try:
                if changes.written():
                    changes.finish(None)
                    return
                changes.undo()
            except PyMongoError as error:
                if monotonic() > end:
                    raise StoreError(
                        f"The store at {self._shown.address} was away for more than "
                        f"{self._retry_s:g} s, and its last write may or may not have been kept: "
                        f"repeat it once the server runs ({self._shown.clean(error)})"
                    ) from None
            else:
                raise Conflict
            time.sleep(_PAUSE_S)


class Changeset:
    """The changes of one operation as writes to the collections, all with the same id."""

    def __init__(self, collections: Collections, documents: Documents) -> None:
        self._in = collections
        self._changes = documents
        self._id = ObjectId()
        self._before: dict[str, Document] = {}
        rows = documents.changed.values()
        self._new = [row for row in rows if row.seen is None]
        self._changed = [row for row in rows if row.seen is not None]
        self._numbers = self._next_numbers()
        self._spans = [
            {"_id": ObjectId(), "attempt": key(attempt_id), "id": key(span_id), "body": blob}
            for attempt_id, spans in documents.spans_added.items()
            for span_id, blob in spans.items()
        ]

    def _next_numbers(self) -> range:
        """Return the numbers of the new rollouts, outside of a transaction: they may have gaps."""
        count = len(self._new)
        if not count:
            return range(0)
        found = self._in.single.find_one_and_update(
            {"_id": "numbers"},
            {"$inc": {"last": count}},
            upsert=True,
            return_document=ReturnDocument.AFTER,
        )
        assert found is not None  # it was inserted otherwise
        return range(found["last"] - count + 1, found["last"] + 1)

    def write(self, session: ClientSession | None) -> None:
        """Write everything in the order that `Committer` states.

        Raises:
            Conflict: a record was changed meanwhile.
            PyMongoError: the server failed, or a record with the same id was inserted meanwhile.
        """
        for start in range(0, len(self._spans), _SPANS_PER_WRITE):
            piece = self._spans[start : start + _SPANS_PER_WRITE]
            self._in.spans.insert_many(piece, ordered=False, session=session)
        self._check_running(session)
        for version, resources in self._changes.resources_added.items():
            document = {"_id": version, "body": encode(resources), "write": self._id}
            self._in.resources.insert_one(document, session=session)
        if self._new:
            self._in.rollouts.insert_many(self._new_documents(), session=session)
        if self._changed:
            if session is None:
                self._remember()
            updates = [self._update(row) for row in self._changed]
            done = self._in.rollouts.bulk_write(updates, session=session)
            if done.matched_count != len(updates):
                raise Conflict
        if self._changes.lead_saved:
            self._write_lead(session)
        self.finish(session)

    def _new_documents(self) -> list[Document]:
        return [
            new_document(row, ROLLOUTS.decode(row.body), number=number, write=self._id)
            for row, number in zip(self._new, self._numbers, strict=True)
        ]

    def _check_running(self, session: ClientSession | None) -> None:
        """Check that the attempts of new spans still run, unless their rollouts are written too.

        The check is a write, so that of two transactions one waits for the other.
        """
        for attempt_id in {**self._changes.spans_added, **self._changes.spans_replaced}:
            owner = self._changes.owner(attempt_id)
            if owner is None or owner.rollout_id in self._changes.changed:
                continue
            wanted: Document = {"_id": key(owner.rollout_id)}
            if owner.running:
                wanted["attempts"] = {"$elemMatch": {"id": key(attempt_id), "running": True}}
            else:  # a late reward, within its grace
                wanted["write"] = self._changes.row(owner.rollout_id).seen
            done = self._in.rollouts.update_one(wanted, {"$inc": {"ingests": 1}}, session=session)
            if not done.matched_count:
                raise Conflict

    def _update(self, row: RolloutDocument) -> UpdateOne:
        change: dict[str, Any] = {"$set": {**row.changing(), "write": self._id}}
        if not row.running:
            change["$unset"] = {"due_at": ""}
        return UpdateOne({"_id": key(row.id), "write": row.seen}, change)

    def _remember(self) -> None:
        """Read what the changed documents are before, to restore them."""
        for piece in pieces([key(row.id) for row in self._changed]):
            for document in self._in.rollouts.find({"_id": {"$in": piece}}):
                self._before[document["_id"]] = document

    def _write_lead(self, session: ClientSession | None) -> None:
        seen, lead = self._changes.lead_change
        single, wanted = self._in.single, {"_id": "lead", "write": seen}
        document = {"_id": "lead", "write": self._id, "body": encode(lead)}
        if seen is None:
            if lead is not None:
                single.insert_one(document, session=session)
            return
        if lead is None:
            done = single.delete_one(wanted, session=session).deleted_count
        else:
            done = single.replace_one(wanted, document, session=session).matched_count
        if not done:
            raise Conflict

    def finish(self, session: ClientSession | None) -> None:
        """Replace records by another form of them and delete spans, which may be repeated."""
        for version, resources in self._changes.resources_rewritten.items():
            change = {"$set": {"body": encode(resources), "write": self._id}}
            self._in.resources.update_one({"_id": version}, change, session=session)
        replaced = [
            UpdateOne({"attempt": key(attempt_id), "id": key(one)}, {"$set": {"body": blob}})
            for attempt_id, spans in self._changes.spans_replaced.items()
            for one, blob in spans.items()
        ]
        for piece in pieces(replaced, _SPANS_PER_WRITE):
            self._in.spans.bulk_write(piece, ordered=False, session=session)
        self._delete(session)

    def _delete(self, session: ClientSession | None) -> None:
        dropped = self._changes.spans_dropped
        whole = [key(one) for one, spans in dropped.items() if spans is None]
        for piece in pieces(whole):
            self._in.spans.delete_many({"attempt": {"$in": piece}}, session=session)
        for attempt_id, spans in dropped.items():
            kept = self._changes.spans_replaced.get(attempt_id, {}).keys()
            for piece in pieces([key(one) for one in (spans or set()) - kept]):
                wanted = {"attempt": key(attempt_id), "id": {"$in": piece}}
                self._in.spans.delete_many(wanted, session=session)

    def written(self) -> bool:
        """Return whether all but what `finish` repeats took effect."""
        changes = self._changes
        return (
            self._count(self._in.rollouts, [key(one) for one in changes.changed])
            and self._count(self._in.resources, list(changes.resources_added))
            and self._count(self._in.spans, [each["_id"] for each in self._spans], marked=False)
            and (not changes.lead_saved or self._lead_written())
        )

    def _count(
        self, collection: Collection[Document], ids: Sequence[Any], *, marked: bool = True
    ) -> bool:
        """Return whether all of these documents are there, as this write left them if `marked`."""
        mark = {"write": self._id} if marked else {}
        found = sum(
            collection.count_documents({"_id": {"$in": piece}, **mark}) for piece in pieces(ids)
        )
        return found == len(ids)

    def _lead_written(self) -> bool:
        found = self._in.single.find_one({"_id": "lead"})
        _, lead = self._changes.lead_change
        return found is None if lead is None else found is not None and found["write"] == self._id

    def undo(self) -> None:
        """Take back what was written without a transaction."""
        for piece in pieces([each["_id"] for each in self._spans]):
            self._in.spans.delete_many({"_id": {"$in": piece}})
        for version in self._changes.resources_added:
            self._in.resources.delete_one({"_id": version, "write": self._id})
        for piece in pieces([key(row.id) for row in self._new]):
            self._in.rollouts.delete_many({"_id": {"$in": piece}, "write": self._id})
        for known, document in self._before.items():
            self._in.rollouts.replace_one({"_id": known, "write": self._id}, document)
