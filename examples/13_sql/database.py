"""Queries on a SQLite database that they can read and not change."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TIMEOUT_S = 2.0
"""Time limit of one query."""
MOST_ROWS = 1_000
"""Rows that are read of a result."""
MOST_BYTES = 65_536
"""Longest value and longest row."""
MOST_CHARACTERS = 2_048
"""Characters of a schema or a result that a model reads."""
STEPS_PER_LOOK = 1_000
"""Instructions of SQLite's virtual machine between two looks at the clock."""
READS = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)
"""All that a query may do."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a query returned: rows, or an error."""

    rows: tuple[tuple[Any, ...], ...] = ()
    error: str = ""
    is_cut: bool = False
    """Whether there were more rows than `MOST_ROWS`."""

    def text(self) -> str:
        """Return what a model reads, `MOST_CHARACTERS` at most."""
        if self.error:
            return cut(f"Error: {self.error}")
        if not self.rows:
            return "no rows"
        lines = [" | ".join(str(value) for value in row) for row in self.rows]
        return cut("\n".join([*lines, "..."] if self.is_cut else lines))


@contextmanager
def copied(database: Path) -> Iterator[Path]:
    """Copy a database for one rollout; remove the copy afterwards.

    Raises:
        FileNotFoundError: there is no such file; SQLite itself would create one.
    """
    if not database.is_file():
        raise FileNotFoundError(
            f"No database at {database}: correct the path, or make the data by make_data.py"
        )
    with TemporaryDirectory(prefix="sql-") as folder:
        yield Path(shutil.copy(database, folder))


def schema(database: Path) -> str:
    """Return the statements that created the tables, `MOST_CHARACTERS` at most."""
    with closing(_connect(database)) as connection:
        rows = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'").fetchall()
    return cut("\n".join(sql for (sql,) in rows))


def run(database: Path, query: str) -> Result:
    """Run one query; every failure is an error in the result."""
    if not query.strip():
        return Result(error="the answer holds no query")
    deadline = time.monotonic() + TIMEOUT_S
    with closing(_connect(database)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_PER_LOOK)
        try:
            cursor = connection.execute(query)
            rows = cursor.fetchmany(MOST_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
            return Result(error=_message(error))
        if cursor.description is None:
            return Result(error="the answer holds no query")
    return Result(tuple(rows[:MOST_ROWS]), is_cut=len(rows) > MOST_ROWS)


def matches(given: Result, gold: Result, *, ordered: bool) -> bool:
    """Return whether two results hold the same rows, equally often; if ordered, in one order.

    Columns are compared in their order, whatever their names; numbers to nine digits.
    """
    if given.error or gold.error or given.is_cut or gold.is_cut:
        return False
    rows, expected = ([*map(_comparable, result.rows)] for result in (given, gold))
    return rows == expected if ordered else Counter(rows) == Counter(expected)


def is_ordered(query: str) -> bool:
    """Return whether a query orders its rows; the order of a subquery does not count."""
    bare = re.sub(r"'[^']*'", "''", query)
    inner = 1
    while inner:
        bare, inner = re.subn(r"\([^()]*\)", " ", bare)
    return re.search(r"\border\s+by\b", bare, re.IGNORECASE) is not None


def cut(text: str) -> str:
    """Return the first `MOST_CHARACTERS` characters of a text, with dots if it was longer."""
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 4] + "\n..."


def _connect(database: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in READS else sqlite3.SQLITE_DENY


def _message(error: Exception) -> str:
    text = str(error)
    if text == "interrupted":
        return f"stopped after {TIMEOUT_S} s"
    if text == "not authorized":
        return "not authorized: only SELECT is allowed"
    return text


def _comparable(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row)
