"""The rows of a database inside one transaction."""

# ruff: noqa: S608  only placeholders and constants are put together
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, LiteralString

import psycopg
from agl_stores import key, unkey
from msgspec.structs import replace

from agl_core.store import ATTEMPTS, RESOURCES, ROLLOUTS, Codec, Lead, Owner, Records, encode
from agl_core.types import Attempt, Resources, Rollout, RolloutQuery, RolloutStatus
from agl_postgres._pending import PendingWrites

SyncConnection = psycopg.Connection[tuple[Any, ...]]
SyncCursor = psycopg.Cursor[tuple[Any, ...]]

READ_ROLLOUTS: LiteralString = (
    "SELECT id, status, consumed, body, ARRAY(SELECT attempts.body FROM agl_attempts attempts "
    "WHERE attempts.rollout = rollouts.number ORDER BY attempts.number) "
    "FROM agl_rollouts rollouts WHERE "
)
# OFFSET 0 and arrays keep the planner from scanning a table that was empty when it made the plan.
_SPANS_OF: LiteralString = (
    "SELECT rollouts.id, attempts.number, spans.body "
    "FROM (SELECT id, number FROM agl_rollouts WHERE id = ANY(%s) OFFSET 0) rollouts "
    "CROSS JOIN LATERAL (SELECT id, number FROM agl_attempts "
    "WHERE rollout = rollouts.number OFFSET 0) attempts "
    "CROSS JOIN LATERAL (SELECT body FROM agl_spans "
    "WHERE attempt = attempts.number OFFSET 0) spans"
)
_BY_ATTEMPT: LiteralString = " ORDER BY rollouts.id, attempts.number"
READ_SPANS: LiteralString = f"{_SPANS_OF}{_BY_ATTEMPT}"
_LEADS = Codec(Lead)
_ATTEMPT: LiteralString = "(SELECT number FROM agl_attempts WHERE id = %s)"
DUE: LiteralString = (
    "number = ANY(ARRAY(SELECT rollout FROM agl_attempts WHERE running AND due_at <= %s))"
)


def as_rollout(status: str, consumed: bool, body: bytes, attempts: Iterable[bytes]) -> Rollout:
    """Return a rollout of its columns; every call makes records of its own."""
    return replace(
        ROLLOUTS.decode(body),
        status=RolloutStatus(status),
        consumed=consumed,
        attempts=tuple(ATTEMPTS.decode(one) for one in attempts),
    )


class Rows(Records):
    """`Records` on a connection with an open transaction, which alone reads or alone writes.

    Writes are sent before the next statement that reads, and by `flush`. The statements may run in
    a pipeline: one whose result is not needed is sent with the next one.
    """

    def __init__(self, connection: SyncConnection) -> None:
        self._sql = connection
        self._pending = PendingWrites()
        self.writes = 0
        """Number of writes so far."""

    def flush(self) -> None:
        """Send the writes."""
        for statement, values in self._pending.take():
            self._sql.execute(statement, values, binary=True)

    def _run(self, statement: LiteralString, values: Sequence[Any] = ()) -> SyncCursor:
        if self._pending:
            self.flush()
        return self._sql.execute(statement, values, binary=True)

    def _read(
        self, where: LiteralString, values: Sequence[Any], order: LiteralString = ""
    ) -> list[Rollout]:
        found = self._run(f"{READ_ROLLOUTS}{where}{order}", values)
        return [as_rollout(*columns) for _, *columns in found.fetchall()]

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        return {one.id: one for one in self._read("id = ANY(%s)", [keys(ids)])}

    def select(self, query: RolloutQuery) -> list[Rollout]:
        conditions: list[LiteralString] = ["TRUE"]
        values: list[Any] = []

        def require(condition: LiteralString, value: Any) -> None:
            conditions.append(condition)
            values.append(value)

        if query.ids:
            require("id = ANY(%s)", keys(query.ids))
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
        limited = [*values, max(0, query.limit)]
        return self._read(" AND ".join(conditions), limited, " ORDER BY id LIMIT %s")

    def queued(self, limit: int) -> list[Rollout]:
        return self._read("status = 'queued'", [limit], " ORDER BY number LIMIT %s")

    def running(self, *, due_by: float) -> list[Rollout]:
        return self._read(DUE, [due_by])

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
            [key(attempt_id), keys(ids)],
        )
        known = {span_id for (span_id,) in found}
        return sum(key(span_id) in known for span_id in ids)

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        one: LiteralString = "" if attempt_id is None else " WHERE attempts.id = %s"
        found = self._run(
            f"{_SPANS_OF}{one}{_BY_ATTEMPT}",
            [keys(rollout_ids), *([] if attempt_id is None else [key(attempt_id)])],
        )
        for _, rows in groupby(found.fetchall(), key=lambda row: row[1]):
            yield [row[2] for row in rows]

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
        self.writes += 1
        self._pending.rollouts[rollout.id] = (
            rollout.run_id,
            rollout.group_id,
            rollout.mode,
            encode(rollout),
        )
        self._pending.states[rollout.id] = (rollout.status.value, False)

    def save_rollout(self, rollout: Rollout) -> None:
        self.writes += 1
        self._pending.states[rollout.id] = (rollout.status.value, rollout.consumed)

    def rewrite(self, record: Rollout | Resources) -> None:
        if isinstance(record, Rollout):
            values = [encode(record), key(record.id)]
            self._write("UPDATE agl_rollouts SET body = %b WHERE id = %s", values)
        else:
            values = [encode(record), record.version]
            self._write("UPDATE agl_resources SET body = %b WHERE version = %s", values)

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        self.writes += 1
        self._pending.attempts[attempt.id] = (
            attempt.rollout_id,
            not attempt.status.final,
            float(due_at),
            digest,
            encode(attempt),
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
            "DELETE FROM agl_spans WHERE attempt = ANY(ARRAY(SELECT number FROM agl_attempts "
            "WHERE rollout = ANY(ARRAY(SELECT number FROM agl_rollouts WHERE id = ANY(%s)))))",
            [keys(rollout_ids)],
        )

    def add_resources(self, resources: Resources) -> None:
        self._write(
            "INSERT INTO agl_resources VALUES (%s, %b)", [resources.version, encode(resources)]
        )

    def save_lead(self, lead: Lead | None) -> None:
        self._write("DELETE FROM agl_lead", [])
        if lead is not None:
            self._write("INSERT INTO agl_lead VALUES (1, %b)", [encode(lead)])


def keys(texts: Iterable[str]) -> list[str]:
    return [key(text) for text in texts]
