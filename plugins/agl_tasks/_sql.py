"""Questions to small databases, and the comparison of what queries return."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import Any, Final

from agl_tasks._rows import Split, TaskRow, generated

_TABLES: Final = (
    ("employees", "department", "salary", ("sales", "support", "research")),
    ("books", "genre", "price", ("history", "poetry", "travel")),
    ("trips", "city", "distance", ("Bonn", "Lyon", "Turin")),
    ("plants", "kind", "height", ("herb", "shrub", "tree")),
)
_MOST_STEPS: Final = 1_000_000
"""Steps of SQLite's machine after which a query is stopped."""
_MOST_ROWS: Final = 1_000
_MOST_BYTES: Final = 1_000_000
"""Bytes of one value that a query computes."""
_READS: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


def sql_generation(split: Split) -> list[TaskRow]:
    """Return questions with their schema and a query that answers them."""
    return generated("sql-generation", _question, split)


def _question(draw: random.Random) -> TaskRow:
    table, group, value, groups = draw.choice(_TABLES)
    schema = (
        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, {group} TEXT, {value} INTEGER)"
    )
    rows = [
        (number, f"{table[:-1]}{number}", draw.choice(groups), draw.randint(1, 99))
        for number in range(1, draw.randint(6, 12))
    ]
    chosen, limit = draw.choice(groups), draw.choice(rows)[3] - 1  # a row is above it
    question, query = draw.choice(
        (
            (
                f"How many rows have the {group} {chosen}?",
                f"SELECT COUNT(*) FROM {table} WHERE {group} = '{chosen}'",  # noqa: S608
            ),
            (
                f"What are the names of those with a {value} above {limit}?",
                f"SELECT name FROM {table} WHERE {value} > {limit}",  # noqa: S608
            ),
            (
                f"How many rows of the {group} {chosen} have a {value} of at most {limit}?",
                f"SELECT COUNT(*) FROM {table} WHERE {group} = '{chosen}' AND {value} <= {limit}",  # noqa: S608
            ),
            (
                f"What is the largest {value} in the {group} {chosen}?",
                f"SELECT MAX({value}) FROM {table} WHERE {group} = '{chosen}'",  # noqa: S608
            ),
        )
    )
    return {
        "input": f"{schema}\n\n{question} Answer with one SQL query.",
        "expected": query,
        "metadata": {"schema": schema, "table": table, "rows": rows},
    }


def same_result(metadata: dict[str, Any], query: str, expected: str) -> bool:
    """Return whether two queries return the same rows, in any order.

    A query that is not a single reading statement, fails, or takes too long returns nothing that
    is equal.
    """
    found = _result(metadata, query)
    return found is not None and found == _result(metadata, expected)


def _result(metadata: dict[str, Any], query: str) -> list[str] | None:
    with closing(sqlite3.connect(":memory:")) as database:
        rows: list[list[Any]] = metadata["rows"]
        places = ", ".join("?" * len(rows[0]))
        try:
            database.execute(metadata["schema"])
            database.executemany(f"INSERT INTO {metadata['table']} VALUES ({places})", rows)  # noqa: S608
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
            database.set_authorizer(_only_reads)
            database.set_progress_handler(lambda: 1, _MOST_STEPS)
            found = database.execute(query)
            return sorted(map(repr, found.fetchmany(_MOST_ROWS))) if found.description else None
        except (sqlite3.Error, sqlite3.Warning, ValueError):
            return None


def _only_reads(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY
