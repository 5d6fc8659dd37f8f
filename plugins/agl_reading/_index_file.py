"""The file of an index: tables, filters as conditions, and pages by place."""

# ruff: noqa: S608  only names of columns and placeholders are put together
from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

import msgspec

from agl_core.errors import StoreError
from agl_core.files import make_private_directory, touch_private
from agl_core.text import replaced
from agl_core.types import Mode
from agl_reading._filters import RowConditions
from agl_reading._rows import Count, RolloutRow, RowFilter, RowQuery, Sort, Sum, SumKind
from agl_reading._summary import Summary
from agl_reading._words import indexed

P = ParamSpec("P")
T = TypeVar("T")

_VERSION: Final = 7
_BUSY_S: Final = 30.0
_MOST_OPEN: Final = 5000
_TABLES: Final = """
CREATE TABLE rows (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL,
    mode TEXT NOT NULL,
    status TEXT NOT NULL,
    cause TEXT NOT NULL,
    task TEXT NOT NULL,
    group_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    resources_version INTEGER NOT NULL,
    reward REAL NOT NULL,
    seconds REAL NOT NULL,
    tokens INTEGER NOT NULL,
    state INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX rows_status ON rows (status, id);
CREATE INDEX rows_mode ON rows (mode, id);
CREATE INDEX rows_cause ON rows (cause, id) WHERE cause != '';
CREATE INDEX rows_task ON rows (task, id);
CREATE INDEX rows_group ON rows (group_id, id);
CREATE INDEX rows_step ON rows (step, id);
CREATE INDEX rows_reward ON rows (reward, id);
CREATE INDEX rows_seconds ON rows (seconds, id);
CREATE INDEX rows_tokens ON rows (tokens, id);
CREATE INDEX rows_open ON rows (id) WHERE state = 0;
CREATE INDEX rows_uncounted ON rows (id) WHERE state = 1;
CREATE TABLE agents (agent TEXT NOT NULL, row INTEGER NOT NULL, PRIMARY KEY (agent, row)) WITHOUT ROWID;
CREATE TABLE sums (
    run_id TEXT NOT NULL, mode TEXT NOT NULL, step INTEGER NOT NULL,
    kind TEXT NOT NULL, name TEXT NOT NULL, n INTEGER NOT NULL, total REAL NOT NULL,
    PRIMARY KEY (kind, run_id, mode, step, name)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE texts USING fts5 (text, content = '', tokenize = "ascii")
"""
_OPEN, _ENDED, _COUNTED = range(3)
"""Values of `state`."""
_COLUMN: Final[dict[Sort, str]] = {
    "time": "",
    "step": "step",
    "reward": "reward",
    "seconds": "seconds",
    "tokens": "tokens",
}
_ROWS: Final = msgspec.msgpack.Decoder(RolloutRow)


def _checked(
    method: Callable[Concatenate[IndexFile, P], T],
) -> Callable[Concatenate[IndexFile, P], T]:
    """Convert SQLite's errors to StoreErrors that name the file."""

    def call(self: IndexFile, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except sqlite3.Error as error:
            raise StoreError(
                f"The index {self.path} failed ({error}): delete it, or name another with --index"
            ) from error

    return call


class IndexFile:
    """The file, with a connection for writing and one for reading, each for one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.uncounted = 0
        self.changes = 0
        self._connections: list[sqlite3.Connection] = []

    @_checked
    def open(self) -> None:
        """Open or create the file.

        Raises:
            StoreError: it cannot be opened.
        """
        try:
            make_private_directory(self.path.parent)
            touch_private(self.path)
        except OSError as error:
            raise StoreError(
                f"The index {self.path} cannot be written ({error}): name another with --index"
            ) from error
        try:
            self._writer = self._connect()
            self._prepare()
        except sqlite3.DatabaseError as error:
            if "not a database" not in str(error) and "malformed" not in str(error):
                raise
            self._replace()
        self._reader = self._connect()
        self._filters = RowConditions(self._reader)
        self._reader.execute("PRAGMA query_only = ON")
        self.measure()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        self._connections.append(connection)
        return connection

    def _prepare(self) -> None:
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = OFF")  # it can be rebuilt
        (version,) = self._writer.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            self._clear()

    def _replace(self) -> None:
        self.close()
        for ending in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        touch_private(self.path)
        self._writer = self._connect()
        self._prepare()

    @_checked
    def clear(self) -> None:
        """Delete everything, for another store."""
        self._clear()
        self.changes += 1
        self.measure()

    def _clear(self) -> None:
        with self._transaction() as sql:
            for (table,) in sql.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN "
                "('rows', 'agents', 'sums', 'texts')"
            ).fetchall():
                sql.execute(f"DROP TABLE {table}")
            for statement in _TABLES.split(";"):
                sql.execute(statement)
            sql.execute(f"PRAGMA user_version = {_VERSION}")

    def close(self) -> None:
        """Close the connections; idempotent."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    @contextmanager
    def _transaction(self) -> Generator[sqlite3.Connection, None, None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield self._writer
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise
        self._writer.execute("COMMIT")

    @_checked
    def measure(self) -> None:
        """Update `rows` and `uncounted`, for which all rows are counted."""
        (self.rows,) = self._writer.execute("SELECT count(*) FROM rows").fetchone()
        (self.uncounted,) = self._writer.execute(
            f"SELECT count(*) FROM rows WHERE state = {_ENDED}"
        ).fetchone()

    @_checked
    def oldest(self) -> str:
        """Return the first id; empty in an empty index."""
        row = self._writer.execute("SELECT min(id) FROM rows").fetchone()
        return row[0] or ""

    @_checked
    def place(self, overlap: int) -> str:
        """Return the id after which to read on: that of the last row but `overlap`."""
        row = self._writer.execute(
            "SELECT id FROM rows ORDER BY id DESC LIMIT 1 OFFSET ?", [overlap]
        ).fetchone()
        return row[0] if row is not None else ""

    @_checked
    def open_ids(self) -> list[str]:
        """Return the oldest rollouts that have not ended."""
        found = self._writer.execute(
            f"SELECT id FROM rows WHERE state = {_OPEN} ORDER BY id LIMIT {_MOST_OPEN}"
        )
        return [each for (each,) in found]

    @_checked
    def uncounted_ids(self, most: int) -> list[str]:
        """Return the newest ended rollouts that are not counted."""
        found = self._writer.execute(
            f"SELECT id FROM rows WHERE state = {_ENDED} ORDER BY id DESC LIMIT ?", [most]
        )
        return [each for (each,) in found]

    @_checked
    def take(self, rows: Sequence[tuple[RolloutRow, bool]]) -> None:
        """Insert or update rows; True: no record of it follows. Counted rows stay."""
        before = self._writer.total_changes
        with self._transaction() as sql:
            for row, ended in rows:
                body = msgspec.msgpack.encode(_plain(row))
                values = (*_columns(row), _ENDED if ended else _OPEN, body)
                sql.execute(
                    "INSERT INTO rows (id, run_id, mode, status, cause, task, group_id, step, "
                    "resources_version, reward, seconds, tokens, state, body) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                    "status = excluded.status, cause = excluded.cause, seconds = excluded.seconds, "
                    f"state = excluded.state, body = excluded.body WHERE state < {_COUNTED} "
                    "AND body != excluded.body OR state < excluded.state",
                    values,
                )
        self.changes += self._writer.total_changes != before

    @_checked
    def add(self, summaries: Sequence[Summary]) -> None:
        """Count ended rollouts, each once; rows that another process has counted stay."""
        sums: dict[tuple[Any, ...], tuple[int, float]] = {}
        with self._transaction() as sql:
            for summary in summaries:
                self._add(sql, summary, sums)
            sql.executemany(
                "INSERT INTO sums VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET "
                "n = n + excluded.n, total = total + excluded.total",
                [(*key, n, total) for key, (n, total) in sums.items()],
            )
        self.changes += 1

    def _add(
        self,
        sql: sqlite3.Connection,
        summary: Summary,
        sums: dict[tuple[Any, ...], tuple[int, float]],
    ) -> None:
        """Count one rollout; `sums` are to be added."""
        row = _plain(summary.row)
        found = sql.execute(
            f"UPDATE rows SET status = ?, cause = ?, reward = ?, seconds = ?, tokens = ?, body = ?, "
            f"state = {_COUNTED} WHERE id = ? AND state < {_COUNTED} RETURNING number",
            (
                row.status.value,
                row.cause,
                row.key("reward"),
                row.seconds,
                row.key("tokens"),
                msgspec.msgpack.encode(row),
                row.id,
            ),
        ).fetchall()
        for (number,) in found:
            sql.executemany(
                "INSERT OR IGNORE INTO agents VALUES (?, ?)",
                [(each, number) for each in row.agents],
            )
            for each in summary.sums.values():
                key = (row.run_id, each.mode, each.step, each.kind, each.name)
                n, total = sums.get(key, (0, 0.0))
                sums[key] = (n + each.n, total + each.total)
            sql.execute(
                "INSERT INTO texts (rowid, text) VALUES (?, ?)", (number, indexed(summary.text))
            )

    @_checked
    def page(self, query: RowQuery) -> list[RolloutRow]:
        """Return a page."""
        where, values = self._filters.conditions(
            query.wanted, query.sort, descending=query.descending
        )
        column, way = _COLUMN[query.sort], "DESC" if query.descending else "ASC"
        after = query.after
        if after is not None:
            sign = "<" if query.descending else ">"
            where.append(f"({column}, id) {sign} (?, ?)" if column else f"id {sign} ?")
            values += [after.key, after.id] if column else [after.id]
        ordered = f"{column} {way}, id {way}" if column else f"id {way}"
        found = self._reader.execute(
            f"SELECT body FROM rows WHERE {' AND '.join(where)} ORDER BY {ordered} LIMIT ?",
            [*values, query.limit],
        )
        return [_ROWS.decode(body) for (body,) in found]

    @_checked
    def count(self, wanted: RowFilter, most: int) -> Count:
        """Count up to `most` rows."""
        where, values = self._filters.conditions(wanted, "time")
        (number,) = self._reader.execute(
            f"SELECT count(*) FROM (SELECT 1 FROM rows WHERE {' AND '.join(where)} LIMIT ?)",
            [*values, most + 1],
        ).fetchone()
        return Count(number=min(number, most), capped=number > most)

    @_checked
    def sums(self, kinds: Sequence[SumKind], run_id: str, first_step: int) -> list[Sum]:
        """Return the sums of kinds, of one run or of all, from a step on."""
        marks = ", ".join("?" * len(kinds))
        one = "AND run_id = ?" if run_id else ""
        found = self._reader.execute(
            f"SELECT mode, step, kind, name, sum(n), sum(total) FROM sums WHERE kind IN ({marks}) "
            f"{one} AND step >= ? GROUP BY mode, step, kind, name "
            "ORDER BY mode, step, kind, name",
            [*kinds, *([run_id] if run_id else []), first_step],
        )
        return [
            Sum(mode=cast("Mode", mode), step=step, kind=kind, name=name, n=n, total=total)
            for mode, step, kind, name, n, total in found
        ]


def _plain(row: RolloutRow) -> RolloutRow:
    """Return a row without lone surrogates, which a file of text cannot hold."""
    return msgspec.structs.replace(
        row,
        task=replaced(row.task),
        agents=tuple(replaced(each) for each in row.agents),
        channels={replaced(name): value for name, value in row.channels.items()},
    )


def _columns(row: RolloutRow) -> tuple[Any, ...]:
    return (
        row.id,
        row.run_id,
        row.mode,
        row.status.value,
        row.cause,
        replaced(row.task),
        row.group_id,
        row.step,
        row.resources_version,
        row.key("reward"),
        row.seconds,
        row.key("tokens"),
    )
