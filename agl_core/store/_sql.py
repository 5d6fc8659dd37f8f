"""The tables of a store's file, the settings of a connection, and `Records` on one connection."""

# ruff: noqa: S608  only placeholders are put together
from __future__ import annotations

import math
import sqlite3
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from agl_core.errors import StoreError
from agl_core.store._codec import ATTEMPTS, LEADS, RESOURCES, ROLLOUTS, encode
from agl_core.store._records import Lead, Owner, Records
from agl_core.text import exact_bytes, has_lone_surrogate
from agl_core.types import Attempt, Resources, Rollout, RolloutQuery, RolloutStatus

SCHEMA_VERSION = 2
_WAL_LIMIT_BYTES = 64 * 1024 * 1024
_CACHE_KIB = 32 * 1024
_WAL_LIMIT_PAGES = 16_000
"""Number of pages in the write-ahead log at which a commit runs a checkpoint."""
_PAGES_PER_PIECE = 256
"""Pages returned to the file system in one step, for which new work may have to wait."""

# Rows are numbered in order of insertion and found through unique indices: with time-ordered ids
# this stays fast as the file grows, while a WITHOUT ROWID table becomes slower.
_TABLES = """
CREATE TABLE schema (version INTEGER NOT NULL);
CREATE TABLE rollouts (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    group_id TEXT NOT NULL,
    mode TEXT NOT NULL,
    status TEXT NOT NULL,
    consumed INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX rollouts_queued ON rollouts (status) WHERE status = 'queued';
CREATE INDEX rollouts_run ON rollouts (run_id, id);
CREATE INDEX rollouts_group ON rollouts (group_id, id);
CREATE TABLE attempts (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    rollout INTEGER NOT NULL,
    running INTEGER NOT NULL,
    due_at REAL NOT NULL,
    digest BLOB NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX attempts_rollout ON attempts (rollout);
CREATE INDEX attempts_due ON attempts (due_at) WHERE running = 1;
CREATE TABLE spans (
    number INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    id TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX spans_id ON spans (attempt, id);
CREATE TABLE resources (version INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE lead (body BLOB NOT NULL);
"""
_MIGRATIONS = {1: "CREATE TABLE lead (body BLOB NOT NULL)"}
"""Statements that migrate a schema version to the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Settings for opening a file."""

    path: Path
    synchronous: Literal["normal", "full"]
    busy_timeout_s: float


@contextmanager
def store_errors(settings: FileSettings) -> Generator[None, None, None]:
    """Convert SQLite errors to StoreErrors that name the file and the fix."""
    try:
        yield
    except (sqlite3.Error, UnicodeEncodeError) as error:
        raise as_store_error(error, settings) from error


def as_store_error(error: Exception, settings: FileSettings) -> StoreError:
    """Return a StoreError for an SQLite error."""
    path, text = settings.path, str(error) or type(error).__name__
    known = text if isinstance(error, sqlite3.Error) else ""
    if "is locked" in known or "busy" in known:
        return StoreError(
            f"Store busy: another process kept {path} locked for more than "
            f"{settings.busy_timeout_s:g} s; end it or raise store.busy_timeout_s"
        )
    if "not a database" in known:
        return StoreError(f"{path} is not a store ({text}): choose another store.path")
    if "malformed" in known:
        return StoreError(
            f"The store in {path} is damaged ({text}): put a copy of it in its place, save what "
            f"can be read with `sqlite3 {path} .recover`, or choose another store.path"
        )
    if "is full" in known:
        return StoreError(
            f"There is no space for the store in {path} ({text}): free some on its disk, or "
            f"choose another store.path; the store continues once there is space"
        )
    return StoreError(
        f"The store in {path} failed ({text}): check that its directory is writable and its disk "
        f"has space"
    )


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll back the transaction, unless SQLite has already ended it after an error."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def give_back_pages(connection: sqlite3.Connection) -> bool:
    """Return some free pages to the file system; return True if there may be more.

    A file without incremental auto-vacuum keeps its pages, and the result is False.
    """
    before = _free_pages(connection)
    # The pragma frees one page per fetched row.
    connection.execute(f"PRAGMA incremental_vacuum({_PAGES_PER_PIECE})").fetchall()
    return 0 < _free_pages(connection) < before


def _free_pages(connection: sqlite3.Connection) -> int:
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return free


def connect(settings: FileSettings, *, read_only: bool = False) -> sqlite3.Connection:
    """Connect to the file; any thread may use the connection, but only one at a time."""
    connection = sqlite3.connect(
        settings.path,
        timeout=settings.busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute(f"PRAGMA synchronous = {settings.synchronous}")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_WAL_LIMIT_PAGES}")
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file, or check and migrate those of an existing one.

    Raises:
        StoreError: the file belongs to another program or a newer agl-core.
    """
    if not _tables(connection):
        # Both must be set before the first table is created and outside a transaction.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        if not _tables(connection):
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute("INSERT INTO schema VALUES (?)", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
    if "schema" not in _tables(connection):
        raise StoreError(f"{path} belongs to another program: choose another store.path")
    version = _version(connection)
    if version < SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")
        for old in range(_version(connection), SCHEMA_VERSION):
            connection.execute(_MIGRATIONS[old])
        connection.execute("UPDATE schema SET version = max(version, ?)", (SCHEMA_VERSION,))
        connection.execute("COMMIT")
        version = _version(connection)
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was written by a newer agl-core (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}): upgrade agl-core or choose another store.path"
        )


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("SELECT version FROM schema").fetchone()
    return version


def _tables(connection: sqlite3.Connection) -> set[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows}


_MOST_VALUES = 500
"""Bound values per statement; some builds of SQLite allow no more than 999."""
_SPANS_PER_STATEMENT = 64
_ROLLOUTS = (
    "SELECT found.*, attempts.body FROM "
    "(SELECT number, status, consumed, body, id FROM rollouts {where}) AS found "
    "LEFT JOIN attempts ON attempts.rollout = found.number "
    "ORDER BY found.{order}, attempts.number"
)
"""One row per attempt, and one row per rollout without attempts."""


def key(text: str) -> str | bytes:
    """Return a key for any text: the text, or bytes if it has lone surrogates."""
    return exact_bytes(text) if has_lone_surrogate(text) else text


def _chunks(values: Sequence[str]) -> Iterator[tuple[str, list[str | bytes]]]:
    """Yield chunks that fit into one statement, each with its placeholders ``(?, ?, ...)``."""
    for start in range(0, len(values), _MOST_VALUES):
        piece = [key(value) for value in values[start : start + _MOST_VALUES]]
        yield f"({', '.join('?' * len(piece))})", piece


class SqlRecords(Records):
    """`Records` on one connection, inside a transaction that the caller opened.

    The owners of running attempts are cached, which saves a query per batch of spans. Call `forget`
    whenever another connection may have written.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._sql = connection
        self._running: dict[str, tuple[int, Owner]] = {}
        self._insert_spans: dict[int, str] = {}

    def forget(self) -> None:
        self._running.clear()

    def rollouts(self, ids: Sequence[str]) -> Mapping[str, Rollout]:
        found: list[Rollout] = []
        for marks, piece in _chunks(ids):
            found += self._load(f"WHERE id IN {marks}", piece)
        return {rollout.id: rollout for rollout in found}

    def _load(self, where: str, values: Sequence[Any], *, order: str = "number") -> list[Rollout]:
        rows = self._sql.execute(_ROLLOUTS.format(where=where, order=order), values)
        bodies: dict[int, tuple[str, int, bytes]] = {}
        attempts: dict[int, list[Attempt]] = {}
        for number, status, consumed, body, _, attempt in rows:
            bodies[number] = (status, consumed, body)
            if attempt is not None:
                attempts.setdefault(number, []).append(ATTEMPTS.decode(attempt))
        return [
            replace(
                ROLLOUTS.decode(body),
                status=RolloutStatus(status),
                consumed=bool(consumed),
                attempts=tuple(attempts.get(number, ())),
            )
            for number, (status, consumed, body) in bodies.items()
        ]

    def select(self, query: RolloutQuery) -> list[Rollout]:
        conditions = ["1"]
        values: list[Any] = []
        for column in ("run_id", "group_id", "mode"):
            wanted = getattr(query, column)
            if wanted is not None:
                conditions.append(f"{column} = ?")
                values.append(key(wanted))
        if query.after_id is not None:
            conditions.append("id > ?")
            values.append(key(query.after_id))
        if query.statuses:
            conditions.append(f"status IN ({', '.join('?' * len(query.statuses))})")
            values += [status.value for status in query.statuses]
        if query.ids:
            return self._select_ids(query, conditions, values)
        where = f"WHERE {' AND '.join(conditions)} ORDER BY id LIMIT ?"
        return self._load(where, [*values, query.limit], order="id")

    def _select_ids(
        self, query: RolloutQuery, conditions: Sequence[str], values: Sequence[Any]
    ) -> list[Rollout]:
        found: list[Rollout] = []
        for marks, piece in _chunks(sorted(set(query.ids))):
            where = f"WHERE {' AND '.join(conditions)} AND id IN {marks} ORDER BY id LIMIT ?"
            left = query.limit - len(found)
            found += self._load(where, [*values, *piece, left], order="id")
            if len(found) >= query.limit:
                break
        return found

    def queued(self, limit: int) -> list[Rollout]:
        return self._load("WHERE status = 'queued' ORDER BY number LIMIT ?", [limit])

    def running(self, *, due_by: float) -> list[Rollout]:
        due = "SELECT rollout FROM attempts WHERE running = 1 AND due_at <= ?"
        return self._load(f"WHERE number IN ({due}) ORDER BY number", [due_by])

    def next_due(self) -> float:
        (due_at,) = self._sql.execute(
            "SELECT min(due_at) FROM attempts WHERE running = 1"
        ).fetchone()
        return math.inf if due_at is None else due_at

    def add_rollout(self, rollout: Rollout) -> None:
        self._sql.execute(
            "INSERT INTO rollouts (id, run_id, group_id, mode, status, consumed, body) "
            "VALUES (?, ?, ?, ?, ?, 0, ?)",
            (
                key(rollout.id),
                key(rollout.run_id),
                key(rollout.group_id),
                rollout.mode,
                rollout.status.value,
                encode(rollout),
            ),
        )

    def save_rollout(self, rollout: Rollout) -> None:
        self._sql.execute(
            "UPDATE rollouts SET status = ?, consumed = ? WHERE id = ?",
            (rollout.status.value, rollout.consumed, key(rollout.id)),
        )

    def rewrite(self, record: Rollout | Resources) -> None:
        rollout = isinstance(record, Rollout)
        where, known = ("rollouts", key(record.id)) if rollout else ("resources", record.version)
        named = "id" if rollout else "version"
        self._sql.execute(f"UPDATE {where} SET body = ? WHERE {named} = ?", (encode(record), known))

    def save_attempt(self, attempt: Attempt, *, due_at: float, digest: bytes = b"") -> None:
        running = not attempt.status.final
        self._sql.execute(
            "INSERT INTO attempts (id, rollout, running, due_at, digest, body) "
            "VALUES (?, (SELECT number FROM rollouts WHERE id = ?), ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET running = excluded.running, "
            "due_at = excluded.due_at, digest = excluded.digest, body = excluded.body",
            (key(attempt.id), key(attempt.rollout_id), running, due_at, digest, encode(attempt)),
        )
        if not running:
            self._running.pop(attempt.id, None)

    def drop_attempt(self, attempt_id: str) -> None:
        self._sql.execute("DELETE FROM attempts WHERE id = ?", (key(attempt_id),))
        self._running.pop(attempt_id, None)

    def owner(self, attempt_id: str) -> Owner | None:
        known = self._running.get(attempt_id)
        if known is not None:
            return known[1]
        row = self._sql.execute(
            "SELECT attempts.number, attempts.running, attempts.body FROM attempts WHERE id = ?",
            (key(attempt_id),),
        ).fetchone()
        if row is None:
            return None
        number, running, body = row
        owner = Owner(rollout_id=ATTEMPTS.decode(body).rollout_id, running=bool(running))
        if owner.running:
            self._running[attempt_id] = (number, owner)
        return owner

    def digest(self, attempt_id: str) -> bytes:
        (digest,) = self._sql.execute(
            "SELECT digest FROM attempts WHERE id = ?", (key(attempt_id),)
        ).fetchone()
        return digest

    def _number(self, attempt_id: str) -> int:
        known = self._running.get(attempt_id)
        if known is not None:
            return known[0]
        (number,) = self._sql.execute(
            "SELECT number FROM attempts WHERE id = ?", (key(attempt_id),)
        ).fetchone()
        return number

    def add_spans(self, attempt_id: str, spans: Sequence[tuple[str, bytes]]) -> int:
        number = self._number(attempt_id)
        added = 0
        for start in range(0, len(spans), _SPANS_PER_STATEMENT):
            values: list[Any] = []
            for span_id, blob in spans[start : start + _SPANS_PER_STATEMENT]:
                values += (number, key(span_id), blob)
            rows = len(values) // 3
            added += self._sql.execute(self._insertion(rows), values).rowcount
        return added

    def _insertion(self, rows: int) -> str:
        # One statement for all rows: a statement per row would release and reacquire the
        # interpreter lock for each of them.
        if rows not in self._insert_spans:
            self._insert_spans[rows] = (
                "INSERT INTO spans (attempt, id, body) VALUES "
                f"{', '.join(['(?, ?, ?)'] * rows)} ON CONFLICT (attempt, id) DO NOTHING"
            )
        return self._insert_spans[rows]

    def known_spans(self, attempt_id: str, ids: Sequence[str]) -> int:
        number = self._number(attempt_id)
        known: set[str | bytes] = set()
        for marks, piece in _chunks(ids):
            rows = self._sql.execute(
                f"SELECT id FROM spans WHERE attempt = ? AND id IN {marks}", [number, *piece]
            )
            known.update(span_id for (span_id,) in rows)
        return sum(key(span_id) in known for span_id in ids)

    def spans(self, rollout_ids: Sequence[str], attempt_id: str | None) -> Iterator[list[bytes]]:
        found: dict[str | bytes, dict[int, list[bytes]]] = {}
        one = "" if attempt_id is None else "AND attempts.id = ?"
        wanted = sorted(set(rollout_ids))
        for marks, piece in _chunks(wanted):
            rows = self._sql.execute(
                "SELECT rollouts.id, attempts.number, spans.body FROM rollouts "
                "JOIN attempts ON attempts.rollout = rollouts.number "
                "JOIN spans ON spans.attempt = attempts.number "
                f"WHERE rollouts.id IN {marks} {one}",
                piece if attempt_id is None else [*piece, key(attempt_id)],
            )
            for rollout, number, body in rows:
                found.setdefault(rollout, {}).setdefault(number, []).append(body)
        for rollout_id in wanted:
            attempts = found.get(key(rollout_id), {})
            yield from (attempts[number] for number in sorted(attempts))

    def drop_spans(self, rollout_ids: Sequence[str]) -> None:
        for marks, piece in _chunks(rollout_ids):
            numbers = f"SELECT number FROM rollouts WHERE id IN {marks}"
            attempts = f"SELECT number FROM attempts WHERE rollout IN ({numbers})"
            self._sql.execute(f"DELETE FROM spans WHERE attempt IN ({attempts})", piece)

    def add_resources(self, resources: Resources) -> None:
        self._sql.execute(
            "INSERT INTO resources VALUES (?, ?)", (resources.version, encode(resources))
        )

    def resources(self, version: int) -> Resources | None:
        row = self._sql.execute(
            "SELECT body FROM resources WHERE version = ?", (version,)
        ).fetchone()
        return None if row is None else RESOURCES.decode(row[0])

    def latest_version(self) -> int:
        (version,) = self._sql.execute("SELECT max(version) FROM resources").fetchone()
        return version or 0

    def lead(self) -> Lead | None:
        row = self._sql.execute("SELECT body FROM lead").fetchone()
        return None if row is None else LEADS.decode(row[0])

    def save_lead(self, lead: Lead | None) -> None:
        self._sql.execute("DELETE FROM lead")
        if lead is not None:
            self._sql.execute("INSERT INTO lead VALUES (?)", (encode(lead),))
