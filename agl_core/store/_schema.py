"""The tables of a store's file, the schema version, and the settings of a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agl_core.errors import StoreError

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
