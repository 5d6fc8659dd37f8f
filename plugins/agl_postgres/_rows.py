"""The rows of a database inside one transaction: `Rows` of a snapshot, and `LockedRows` to write."""

# ruff: noqa: S608  only placeholders and constants are put together
from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, LiteralString

import psycopg
from agl_stores import key, unkey
from msgspec.structs import replace

from agl_core.store import ATTEMPTS, RESOURCES, ROLLOUTS, Codec, Lead, Owner, Records, encode
from agl_core.types import Attempt, Resources, Rollout, RolloutQuery, RolloutStatus

SyncConnection = psycopg.Connection[tuple[Any, ...]]
SyncCursor = psycopg.Cursor[tuple[Any, ...]]

_LEADS = Codec(Lead)
_FIELDS: LiteralString = "SELECT number, id, status, consumed, body FROM agl_rollouts"
_ATTEMPT: LiteralString = "(SELECT number FROM agl_attempts WHERE id = %s)"
_DUE: LiteralString = "number IN (SELECT rollout FROM agl_attempts WHERE running AND due_at <= %s)"
_NAMED: LiteralString = (
    "number IN (SELECT number FROM agl_rollouts WHERE id = ANY(%s) "
    "UNION SELECT rollout FROM agl_attempts WHERE id = ANY(%s))"
)


@dataclass(slots=True)
class _AttemptRow:
    body: bytes
    running: bool
    due_at: float


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
        return replace(
            ROLLOUTS.decode(self.body),
            status=RolloutStatus(self.status),
            consumed=self.consumed,
            attempts=tuple(ATTEMPTS.decode(one.body) for one in self.attempts.values()),
        )

    def due(self, by: float) -> bool:
        return any(one.running and one.due_at <= by for one in self.attempts.values())


class Rows(Records):
    """`Records` on a connection with an open transaction, which alone reads or alone writes.

    The statements may run in a pipeline: one whose result is not needed is sent with the next one.
    """

    def __init__(self, connection: SyncConnection) -> None:
        self._sql = connection
        self.writes = 0
        """Number of writes so far."""

    def _run(self, statement: LiteralString, values: Sequence[Any] = ()) -> SyncCursor:
        return self._sql.execute(statement, values, binary=True)

    def _load(
        self, where: LiteralString, values: Sequence[Any], *, lock: LiteralString = ""
    ) -> list[_Row]:
        """Return rows with their attempts; those of a lock are as they are once it is held."""
        found = self._run(f"{_FIELDS} WHERE {where}{lock}", values).fetchall()
        rows = {
            number: _Row(number, unkey(known), status, consumed, body)
            for number, known, status, consumed, body in found
        }
        if rows:
            attempts = self._run(
                "SELECT rollout, id, body, running, due_at FROM agl_attempts "
                "WHERE rollout = ANY(%s) ORDER BY number",
                [list(rows)],
            )
            for number, known, body, running, due_at in attempts:
                rows[number].attempts[unkey(known)] = _AttemptRow(body, running, due_at)
        return list(rows.values())

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        rows = self._load("id = ANY(%s)", [_keys(ids)])
        return {row.id: row.rollout() for row in rows}

    def select(self, query: RolloutQuery) -> list[Rollout]:
        conditions: list[LiteralString] = ["TRUE"]
        values: list[Any] = []

        def require(condition: LiteralString, value: Any) -> None:
            conditions.append(condition)
            values.append(value)

        if query.ids:
            require("id = ANY(%s)", _keys(query.ids))
        if query.run_id is not None:
            require("run_id = %s", key(query.run_id))
        if query.group_id is not None:
            require("group_id = %s", key(query.group_id))
        if query.mode is not None:
            require("mode = %s", key(query.mode))
        if query.statuses:
            require("status = ANY(%s)", [each.value for each in query.statuses])
        if query.after_id is not None:
            require("id > %s", key(query.after_id))
        where = " AND ".join(conditions)
        rows = self._load(where, [*values, max(0, query.limit)], lock=" ORDER BY id LIMIT %s")
        return [row.rollout() for row in rows]

    def queued(self, limit: int) -> list[Rollout]:
        rows = self._load("status = 'queued'", [limit], lock=" ORDER BY number LIMIT %s")
        return [row.rollout() for row in rows]

    def running(self, *, due_by: float) -> list[Rollout]:
        return [row.rollout() for row in self._load(_DUE, [due_by])]

    def next_due(self) -> float:
        (due_at,) = self._one("SELECT min(due_at) FROM agl_attempts WHERE running")
        return math.inf if due_at is None else due_at

    def _one(self, statement: LiteralString, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the only row of a query that always has one."""
        return self._run(statement, values).fetchall()[0]

    def owner(self, attempt_id: str) -> Owner | None:
        row = self._run(
            "SELECT rollouts.id, attempts.running FROM agl_attempts attempts "
            "JOIN agl_rollouts rollouts ON rollouts.number = attempts.rollout "
            "WHERE attempts.id = %s",
            [key(attempt_id)],
        ).fetchone()
        return None if row is None else Owner(rollout_id=unkey(row[0]), running=row[1])

    def digest(self, attempt_id: str) -> bytes:
        (digest,) = self._one("SELECT digest FROM agl_attempts WHERE id = %s", [key(attempt_id)])
        return digest

    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        found = self._run(
            f"SELECT id FROM agl_spans WHERE attempt = {_ATTEMPT} AND id = ANY(%s)",
            [key(attempt_id), _keys(ids)],
        )
        known = {span_id for (span_id,) in found}
        return sum(key(span_id) in known for span_id in ids)

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        one: LiteralString = "" if attempt_id is None else " AND attempts.id = %s"
        found = self._run(
            "SELECT attempts.number, spans.body FROM agl_rollouts rollouts "
            "JOIN agl_attempts attempts ON attempts.rollout = rollouts.number "
            "JOIN agl_spans spans ON spans.attempt = attempts.number "
            f"WHERE rollouts.id = ANY(%s){one} ORDER BY rollouts.id, attempts.number",
            [_keys(rollout_ids), *([] if attempt_id is None else [key(attempt_id)])],
        )
        for _, rows in groupby(found.fetchall(), key=lambda row: row[0]):
            yield [body for _, body in rows]

    def resources(self, version: int) -> Resources | None:
        row = self._run("SELECT body FROM agl_resources WHERE version = %s", [version]).fetchone()
        return None if row is None else RESOURCES.decode(row[0])

    def latest_version(self) -> int:
        (version,) = self._one("SELECT max(version) FROM agl_resources")
        return version or 0

    def lead(self) -> Lead | None:
        row = self._run("SELECT body FROM agl_lead").fetchone()
        return None if row is None else _LEADS.decode(row[0])

    def _write(self, statement: LiteralString, values: Sequence[Any]) -> SyncCursor:
        self.writes += 1
        return self._run(statement, values)

    def add_rollout(self, rollout: Rollout) -> None:
        self._write(
            "INSERT INTO agl_rollouts (id, run_id, group_id, mode, status, consumed, body) "
            "VALUES (%s, %s, %s, %s, %s, FALSE, %b)",
            [
                key(rollout.id),
                key(rollout.run_id),
                key(rollout.group_id),
                key(rollout.mode),
                rollout.status.value,
                encode(rollout),
            ],
        )

    def save_rollout(self, rollout: Rollout) -> None:
        self._write(
            "UPDATE agl_rollouts SET status = %s, consumed = %s WHERE id = %s",
            [rollout.status.value, rollout.consumed, key(rollout.id)],
        )

    def rewrite(self, record: Rollout | Resources) -> None:
        if isinstance(record, Rollout):
            values = [encode(record), key(record.id)]
            self._write("UPDATE agl_rollouts SET body = %b WHERE id = %s", values)
        else:
            values = [encode(record), record.version]
            self._write("UPDATE agl_resources SET body = %b WHERE version = %s", values)

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        self._write(
            "INSERT INTO agl_attempts (id, rollout, running, due_at, digest, body) "
            "VALUES (%s, (SELECT number FROM agl_rollouts WHERE id = %s), %s, %s, %b, %b) "
            "ON CONFLICT (id) DO UPDATE SET running = excluded.running, "
            "due_at = excluded.due_at, digest = excluded.digest, body = excluded.body",
            [
                key(attempt.id),
                key(attempt.rollout_id),
                not attempt.status.final,
                due_at,
                digest,
                encode(attempt),
            ],
        )

    def drop_attempt(self, attempt_id: str) -> None:
        self._write("DELETE FROM agl_attempts WHERE id = %s", [key(attempt_id)])

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        if not spans:
            return 0
        added = self._write(
            "WITH added AS (INSERT INTO agl_spans (attempt, id, body) "
            f"SELECT {_ATTEMPT}, one.id, one.body "
            "FROM unnest(%b::text[], %b::bytea[]) WITH ORDINALITY AS one (id, body, n) "
            "ORDER BY one.n ON CONFLICT (attempt, id) DO NOTHING RETURNING 1) "
            "SELECT count(*) FROM added",
            [key(attempt_id), [key(span_id) for span_id, _ in spans], [blob for _, blob in spans]],
        )
        return added.fetchall()[0][0]

    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        self._write(
            "DELETE FROM agl_spans WHERE attempt IN (SELECT number FROM agl_attempts "
            "WHERE rollout IN (SELECT number FROM agl_rollouts WHERE id = ANY(%s)))",
            [_keys(rollout_ids)],
        )

    def add_resources(self, resources: Resources) -> None:
        self._write(
            "INSERT INTO agl_resources VALUES (%s, %b)", [resources.version, encode(resources)]
        )

    def save_lead(self, lead: Lead | None) -> None:
        self._write("DELETE FROM agl_lead", [])
        if lead is not None:
            self._write("INSERT INTO agl_lead VALUES (1, %b)", [encode(lead)])


class LockedRows(Rows):
    """`Records` for writing: what they return is locked until the transaction ends.

    A lock on a rollout's row also covers its attempts and spans: every writer takes it first, so
    the fence is checked in the database. Rows of rollouts are locked in the order of their ids,
    so that transactions do not wait for each other in a circle; only `queued` takes them as they
    were added, and skips locked rows instead of waiting.
    """

    def __init__(self, connection: SyncConnection) -> None:
        super().__init__(connection)
        self._known: dict[str, _Row] = {}
        self._absent: set[str] = set()
        self._rollout_of: dict[str, str] = {}
        self.span_writes = 0
        """Number of writes that only add spans to a running attempt."""

    def _lock(
        self, where: LiteralString, values: Sequence[Any], lock: LiteralString = ""
    ) -> list[_Row]:
        rows = self._load(where, values, lock=lock or " ORDER BY id FOR NO KEY UPDATE")
        for row in rows:
            self._known[row.id] = row
            self._rollout_of.update(dict.fromkeys(row.attempts, row.id))
        return rows

    def lock(self, rollout_ids: Collection[str], attempt_ids: Collection[str]) -> None:
        """Lock rollouts by their ids and by those of attempts, in one statement."""
        self._lock(_NAMED, [_keys(rollout_ids), _keys(attempt_ids)])
        self._absent.update(one for one in rollout_ids if one not in self._known)

    def _row(self, rollout_id: str) -> _Row:
        self._lock_missing([rollout_id])
        return self._known[rollout_id]

    def _lock_missing(self, ids: Iterable[str]) -> None:
        missing = [one for one in ids if one not in self._known and one not in self._absent]
        if missing:
            self._lock("id = ANY(%s)", [_keys(missing)])

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        self._lock_missing(ids)
        return {one: self._known[one].rollout() for one in ids if one in self._known}

    def queued(self, limit: int) -> list[Rollout]:
        rows = self._lock(
            "status = 'queued'",
            [limit],
            " ORDER BY number LIMIT %s FOR NO KEY UPDATE SKIP LOCKED",
        )
        return [row.rollout() for row in rows]

    def running(self, *, due_by: float) -> list[Rollout]:
        # A row may have changed before the lock on it was granted.
        return [row.rollout() for row in self._lock(_DUE, [due_by]) if row.due(due_by)]

    def owner(self, attempt_id: str) -> Owner | None:
        if attempt_id not in self._rollout_of:
            self._lock(
                "number IN (SELECT rollout FROM agl_attempts WHERE id = %s)", [key(attempt_id)]
            )
        rollout_id = self._rollout_of.get(attempt_id)
        if rollout_id is None:
            return None
        return Owner(rollout_id, self._known[rollout_id].attempts[attempt_id].running)

    def add_rollout(self, rollout: Rollout) -> None:
        self._absent.discard(rollout.id)
        super().add_rollout(rollout)

    def save_rollout(self, rollout: Rollout) -> None:
        super().save_rollout(rollout)
        row = self._row(rollout.id)
        row.status, row.consumed = rollout.status.value, rollout.consumed

    def rewrite(self, record: Rollout | Resources) -> None:
        super().rewrite(record)
        if isinstance(record, Rollout):
            self._row(record.id).body = encode(record)

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        super().save_attempt(attempt, due_at=due_at, digest=digest)
        row = self._row(attempt.rollout_id)
        kept = _AttemptRow(encode(attempt), not attempt.status.final, due_at)
        row.attempts[attempt.id] = kept
        self._rollout_of[attempt.id] = row.id

    def drop_attempt(self, attempt_id: str) -> None:
        super().drop_attempt(attempt_id)
        rollout_id = self._rollout_of.pop(attempt_id, None)
        if rollout_id is not None:
            del self._known[rollout_id].attempts[attempt_id]

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        owner = self.owner(attempt_id)
        self.span_writes += owner is not None and owner.running and bool(spans)
        return super().add_spans(attempt_id, spans)

    def lead(self) -> Lead | None:
        # Of two trainers that find no lead, one waits until the other has taken it.
        self._run("LOCK TABLE agl_lead IN SHARE ROW EXCLUSIVE MODE")
        return super().lead()


def _keys(texts: Iterable[str]) -> list[str]:
    return [key(text) for text in texts]
