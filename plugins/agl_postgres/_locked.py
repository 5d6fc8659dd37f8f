"""The rows of a database inside a transaction that writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

from agl_stores import key, unkey

from agl_core.store import Lead, Owner, encode
from agl_core.types import Attempt, Resources, Rollout, RolloutStatus
from agl_postgres._rows import DUE, Rows, SyncConnection, as_rollout, keys

_FIELDS: Final[LiteralString] = "SELECT number, id, status, consumed, body FROM agl_rollouts"
_ATTEMPTS: Final[LiteralString] = (
    "SELECT rollout, number, id, body, running, due_at, digest FROM agl_attempts WHERE rollout = "
)
_NAMED: Final[LiteralString] = (
    "ANY(ARRAY(SELECT number FROM agl_rollouts WHERE id = ANY(%s) "
    "UNION ALL SELECT rollout FROM agl_attempts WHERE id = ANY(%s)))"
)
_QUEUED: Final[LiteralString] = (
    f"{_FIELDS} WHERE status = 'queued' ORDER BY number LIMIT %s FOR NO KEY UPDATE SKIP LOCKED"
)
_IN_ORDER: Final[LiteralString] = " ORDER BY id FOR NO KEY UPDATE"
_ADDED: Final = 2**62
"""More than any number of a row: rollouts of this transaction come after all others."""
_MOST_BYTES: Final = 4_000_000
"""Bytes of spans that are kept before they are sent."""


@dataclass(slots=True)
class _AttemptRow:
    number: int
    """0 for an attempt of this transaction."""
    body: bytes
    running: bool
    due_at: float
    digest: bytes


@dataclass(slots=True)
class _Row:
    """A rollout's columns and its attempts, as bytes: every read makes records of its own."""

    number: int
    id: str
    status: str
    consumed: bool
    body: bytes
    attempts: dict[str, _AttemptRow] = field(default_factory=dict[str, _AttemptRow])

    def rollout(self) -> Rollout:
        bodies = [one.body for one in self.attempts.values()]
        return as_rollout(self.status, self.consumed, self.body, bodies)

    def due(self, by: float) -> bool:
        return any(one.running and one.due_at <= by for one in self.attempts.values())


class LockedRows(Rows):
    """`Records` for writing: what they return is locked until the transaction ends.

    A lock on a rollout's row also covers its attempts and spans: every writer takes it first, so
    the fence is checked in the database. Rows of rollouts are locked in the order of their ids,
    so that transactions do not wait for each other in a circle; only those of the queue are taken
    as they were added, and locked rows are skipped there instead of waited for.

    Rows are read once: what the transaction wrote is answered from here.
    """

    def __init__(self, connection: SyncConnection, *, expect_repeated: bool = True) -> None:
        """Begin with no row locked.

        Args:
            connection: A connection with an open transaction at the level READ COMMITTED.
            expect_repeated: Whether rollouts and spans that are added may be stored already. If
                False, one that is fails the transaction with `UniqueViolation`.
        """
        super().__init__(connection)
        self._expect_repeated = expect_repeated
        self._known: dict[str, _Row] = {}
        self._absent: set[str] = set()
        self._rollout_of: dict[str, str] = {}
        self._queue: dict[str, _Row] = {}
        """Locked rollouts that are queued, or were."""
        self._prefetched = 0
        """How many rollouts of the queue can be claimed before the database is asked again."""
        self._new_spans: dict[str, set[str]] = {}
        """Ids of the spans of this transaction, by attempt."""
        self.span_writes = 0
        """Number of writes that only add spans to a running attempt."""

    def prefetch(
        self, *, added: set[str], rollouts: set[str], attempts: set[str], queued: int
    ) -> None:
        """Lock rollouts by their ids, by those of attempts, and the first of the queue.

        Args:
            added: Rollouts that will be added, unless they exist.
            rollouts: Further rollouts.
            attempts: Attempts whose rollouts are locked.
            queued: Number of rollouts of the queue.
        """
        if self._expect_repeated:
            rollouts = rollouts | added
        else:
            self._absent.update(added - rollouts)
        # All statements are sent before the first answer is read. The one for attempts sees them as
        # they are once the locks are held.
        named = [keys(rollouts), keys(attempts)]
        by_name = (
            [
                self._run(f"{_FIELDS} WHERE number = {_NAMED}{_IN_ORDER}", named),
                self._run(f"{_ATTEMPTS}{_NAMED} ORDER BY number", named),
            ]
            if rollouts or attempts
            else []
        )
        waiting = self._run(_QUEUED, [queued]) if queued else None
        if by_name:
            locked, theirs = by_name
            self._learn(locked.fetchall(), theirs.fetchall())
            self._absent.update(one for one in rollouts if one not in self._known)
        if waiting is not None:
            self._take_queue(waiting.fetchall())
            self._prefetched = queued

    def _learn(self, rows: Sequence[tuple[Any, ...]], attempts: Iterable[tuple[Any, ...]]) -> None:
        """Keep rows that were just locked, with their attempts."""
        fresh: dict[int, _Row] = {}
        for number, name, status, consumed, body in rows:
            known = self._known.get(rollout_id := unkey(name))
            if known is not None:
                known.number = number
            else:
                fresh[number] = _Row(number, rollout_id, status, consumed, body)
                self._known[rollout_id] = fresh[number]
        for rollout, number, name, body, running, due_at, digest in attempts:
            if rollout in fresh:
                row, attempt_id = fresh[rollout], unkey(name)
                row.attempts[attempt_id] = _AttemptRow(number, body, running, due_at, digest)
                self._rollout_of[attempt_id] = row.id

    def _lock(
        self, where: LiteralString, values: Sequence[Any], lock: LiteralString = _IN_ORDER
    ) -> list[_Row]:
        found = self._run(f"{_FIELDS} WHERE {where}{lock}", values).fetchall()
        return self._with_attempts(found)

    def _with_attempts(self, found: Sequence[tuple[Any, ...]]) -> list[_Row]:
        ids = [unkey(name) for _, name, *_ in found]
        fresh = [row[0] for row, one in zip(found, ids, strict=True) if one not in self._known]
        attempts = (
            self._run(f"{_ATTEMPTS}ANY(%s) ORDER BY number", [fresh]).fetchall() if fresh else []
        )
        self._learn(found, attempts)
        return [self._known[one] for one in ids]

    def _take_queue(self, found: Sequence[tuple[Any, ...]]) -> None:
        self._queue.update((row.id, row) for row in self._with_attempts(found))

    def _row(self, rollout_id: str) -> _Row:
        self._lock_missing([rollout_id])
        return self._known[rollout_id]

    def _lock_missing(self, ids: Iterable[str]) -> None:
        missing = [one for one in ids if one not in self._known and one not in self._absent]
        if missing:
            self._lock("id = ANY(%s)", [keys(missing)])

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        self._lock_missing(ids)
        return {one: self._known[one].rollout() for one in ids if one in self._known}

    def queued(self, limit: int) -> list[Rollout]:
        if limit > self._prefetched:
            self._take_queue(self._run(_QUEUED, [limit]).fetchall())
            self._prefetched = limit
        self._prefetched -= limit
        waiting = [row for row in self._queue.values() if row.status == RolloutStatus.QUEUED]
        waiting.sort(key=lambda row: row.number)
        return [row.rollout() for row in waiting[: max(0, limit)]]

    def left_queued(self) -> int:
        """Return how many locked rollouts are queued, and were before."""
        added = self._pending.rollouts
        return sum(
            row.status == RolloutStatus.QUEUED and row.id not in added
            for row in self._known.values()
        )

    def running(self, *, due_by: float) -> list[Rollout]:
        # A row may have changed before the lock on it was granted.
        return [row.rollout() for row in self._lock(DUE, [due_by]) if row.due(due_by)]

    def owner(self, attempt_id: str) -> Owner | None:
        if attempt_id not in self._rollout_of:
            self._lock(
                "number = (SELECT rollout FROM agl_attempts WHERE id = %s)", [key(attempt_id)]
            )
        attempt = self._attempt(attempt_id)
        return attempt and Owner(self._rollout_of[attempt_id], attempt.running)

    def _attempt(self, attempt_id: str) -> _AttemptRow | None:
        """Return an attempt whose rollout is locked."""
        rollout_id = self._rollout_of.get(attempt_id)
        return None if rollout_id is None else self._known[rollout_id].attempts[attempt_id]

    def digest(self, attempt_id: str) -> bytes:
        attempt = self._attempt(attempt_id)
        return super().digest(attempt_id) if attempt is None else attempt.digest

    def add_rollout(self, rollout: Rollout) -> None:
        super().add_rollout(rollout)
        self._absent.discard(rollout.id)
        number = _ADDED + len(self._known)
        row = _Row(number, rollout.id, rollout.status.value, False, encode(rollout))
        self._known[row.id] = self._queue[row.id] = row

    def save_rollout(self, rollout: Rollout) -> None:
        row = self._row(rollout.id)
        super().save_rollout(rollout)
        row.status, row.consumed = rollout.status.value, rollout.consumed
        self._queue[row.id] = row

    def rewrite(self, record: Rollout | Resources) -> None:
        super().rewrite(record)
        if isinstance(record, Rollout):
            self._row(record.id).body = encode(record)

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        row = self._row(attempt.rollout_id)
        super().save_attempt(attempt, due_at=due_at, digest=digest)
        before = row.attempts.get(attempt.id)
        number = before.number if before else 0
        running = not attempt.status.final
        row.attempts[attempt.id] = _AttemptRow(number, encode(attempt), running, due_at, digest)
        self._rollout_of[attempt.id] = row.id

    def drop_attempt(self, attempt_id: str) -> None:
        super().drop_attempt(attempt_id)
        rollout_id = self._rollout_of.pop(attempt_id, None)
        if rollout_id is not None:
            del self._known[rollout_id].attempts[attempt_id]

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        owner = self.owner(attempt_id)
        self.span_writes += owner is not None and owner.running and bool(spans)
        attempt = self._attempt(attempt_id)
        if self._expect_repeated or not spans or attempt is None or not attempt.number:
            return super().add_spans(attempt_id, spans)
        known = self._new_spans.setdefault(attempt_id, set())
        fresh: dict[str, bytes] = {}
        for one, blob in spans:
            if one not in known:
                fresh.setdefault(one, blob)
        known.update(fresh)
        self.writes += 1
        self._pending.add_spans(attempt.number, list(fresh.items()))
        if self._pending.size > _MOST_BYTES:
            self.flush()
        return len(fresh)

    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        super().drop_spans(rollout_ids)
        self._new_spans.clear()

    def lead(self) -> Lead | None:
        # Of two trainers that find no lead, one waits until the other has taken it.
        self._run("LOCK TABLE agl_lead IN SHARE ROW EXCLUSIVE MODE")
        return super().lead()
