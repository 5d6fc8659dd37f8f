"""Draws the rows of a database, questions about it, and the query that answers each."""

from __future__ import annotations

import random
import sqlite3
from typing import NamedTuple

from domains import NAMES, VALUES, Schema, Table

FIRST_ROWS, SECOND_ROWS = 5, 10
TEMPLATES = (
    ("List the name of each {t} whose {c} is {v}.", "SELECT name FROM {t} WHERE {c} = '{v}'"),
    ("List the name of each {t} with {n} above {k}.", "SELECT name FROM {t} WHERE {n} > {k}"),
    ("List the name of each {t} with {n} below {k}.", "SELECT name FROM {t} WHERE {n} < {k}"),
    ("How many {t} rows have {c} {v}?", "SELECT COUNT(*) FROM {t} WHERE {c} = '{v}'"),
    ("What is the highest {n} of a {t}?", "SELECT MAX({n}) FROM {t}"),
    ("What is the lowest {n} of a {t}?", "SELECT MIN({n}) FROM {t}"),
    ("What is the average {n} of a {t}?", "SELECT AVG({n}) FROM {t}"),
    ("What is the highest {n} where {c} is {v}?", "SELECT MAX({n}) FROM {t} WHERE {c} = '{v}'"),
    ("List the name of each {t}, highest {n} first.", "SELECT name FROM {t} ORDER BY {n} DESC"),
    ("List the name of each {t}, lowest {n} first.", "SELECT name FROM {t} ORDER BY {n}"),
    ("Which {t} has the highest {n}?", "SELECT name FROM {t} ORDER BY {n} DESC LIMIT 1"),
    ("List each {c} with its number of {t} rows.", "SELECT {c}, COUNT(*) FROM {t} GROUP BY {c}"),
    (
        "List the name of each {u} whose {f} has {d} {w}.",
        "SELECT name FROM {u} WHERE {f} IN (SELECT name FROM {f} WHERE {d} = '{w}')",
    ),
)
"""Question and query. ``t`` is a table with text column ``c`` and column of numbers ``n``; ``u`` is
the second table, ``f`` the first and ``d`` its text column; ``v``, ``w`` and ``k`` are values."""

Rows = list[tuple[str | int, ...]]


class Question(NamedTuple):
    """A question, its template and what fills that."""

    template: int
    slots: dict[str, str]

    @property
    def text(self) -> str:
        """The question in words."""
        return TEMPLATES[self.template][0].format_map(self.slots)

    @property
    def gold(self) -> str:
        """The query that answers it."""
        return TEMPLATES[self.template][1].format_map(self.slots)


def fill(connection: sqlite3.Connection, schema: Schema, chance: random.Random) -> None:
    """Create the two tables and their rows."""
    first = _rows(schema.first, FIRST_ROWS, chance)
    second = _rows(schema.second, SECOND_ROWS, chance)
    owners = [str(row[0]) for row in first]
    second = [(name, chance.choice(owners), *rest) for name, *rest in second]
    _create(connection, schema.first, first)
    _create(connection, schema.second, second, schema.first.name)


def _rows(table: Table, count: int, chance: random.Random) -> Rows:
    """Return rows with a name, a text and numbers; a column repeats no number."""
    names = chance.sample(NAMES.split(), count)
    texts = chance.choices(VALUES[table.text].split(), k=count)
    numbers = [chance.sample(range(10, 100), count) for _ in table.numbers]
    return [*zip(names, texts, *numbers, strict=True)]


def _create(
    connection: sqlite3.Connection, table: Table, rows: Rows, refers_to: str | None = None
) -> None:
    texts = ["name", *([refers_to] if refers_to else []), table.text]
    columns = [f"{column} TEXT" for column in texts]
    columns += [f"{column} INTEGER" for column in table.numbers]
    connection.execute(f"CREATE TABLE {table.name} ({', '.join(columns)})")
    holes = ", ".join("?" * len(columns))
    connection.executemany(f"INSERT INTO {table.name} VALUES ({holes})", rows)  # noqa: S608
    connection.commit()


def draw(connection: sqlite3.Connection, schema: Schema, chance: random.Random) -> Question:
    """Draw a question that the database answers by at least one row."""
    while True:
        table = chance.choice(schema)
        slots = {
            "t": table.name,
            "c": table.text,
            "v": chance.choice(VALUES[table.text].split()),
            "n": chance.choice(table.numbers),
            "k": str(chance.randrange(20, 90)),
            "u": schema.second.name,
            "f": schema.first.name,
            "d": schema.first.text,
            "w": chance.choice(VALUES[schema.first.text].split()),
        }
        question = Question(chance.randrange(len(TEMPLATES)), slots)
        if connection.execute(question.gold).fetchone() not in (None, (None,), (0,)):
            return question
