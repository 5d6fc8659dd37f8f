"""Filters as conditions of SQL, so that a page costs what it shows and not what the index holds."""

# ruff: noqa: S608  only names of columns and placeholders are put together
from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from agl_reading._rows import RowFilter, Sort
from agl_reading._words import phrases

FEW: Final = 10_000
"""So many rows are found and sorted for every page; more are met soon where one reads in order."""
_KEPT: Final = 4
"""Searches of which the rows are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of a filter.

    Its tests begin with ``{}``: a plus in that place keeps SQLite from reading rows by the condition's
    own index.
    """

    tests: tuple[str, ...]
    values: tuple[Any, ...]
    sort: Sort | None = None
    """The order of rows that its index gives; None if it has no index."""
    rows: str = "SELECT 1 FROM rows"
    """Where its rows are counted."""
    ordered: bool = True
    """Whether rows by its index are in that order; those of a set are not."""
    other: str = ""
    """What tests one row, if that is another condition."""

    def sql(self, plus: str) -> str:
        if plus and self.other:
            return self.other
        return " AND ".join(test.format(plus) for test in self.tests)


class RowConditions:
    """Conditions for the rows that are there, on a connection that one thread uses."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql
        sql.execute("PRAGMA temp_store = MEMORY")
        self._kept: dict[str, tuple[int, str]] = {}
        """By phrases: the version of the file, and the table with the numbers of the rows found."""
        self._made = 0

    def conditions(
        self, wanted: RowFilter, sort: Sort, *, descending: bool = True
    ) -> tuple[list[str], list[Any]]:
        """Return conditions and their values.

        The condition with the fewest rows is read by its index if these are few. Otherwise rows are read
        in their order, which meets enough of them soon.
        """
        found = [*_equal(wanted), *_ranges(wanted), *self._sets(wanted)]
        lead = self._lead(found, sort)
        where, values = ["1"], list[Any]()
        for each in found:
            where.append(each.sql("" if each is lead else "+"))
            values += each.values
        bound = next((each for each in found if each.sort == "step"), None)
        if bound is not None and bound is not lead and sort == "time":
            # Steps follow time: rows of early ones are far from the newest.
            sign, end = ("<=", "max") if descending else (">=", "min")
            where.append(f"id {sign} (SELECT {end}(id) FROM rows WHERE {bound.sql('')})")
            values += bound.values
        return where, values

    def _lead(self, found: list[Condition], sort: Sort) -> Condition | None:
        counted = [(self._count(each), at) for at, each in enumerate(found) if each.sort]
        fewest, at = min(counted, default=(FEW, 0))
        if fewest < FEW:
            return found[at]
        return next((each for each in found if each.sort == sort and each.ordered), None)

    def _count(self, condition: Condition) -> int:
        """Count the rows of a condition, up to `FEW`."""
        where = f"WHERE {condition.sql('')}" if condition.rows.endswith("rows") else ""
        values = condition.values if "?" in where + condition.rows else ()
        counted = f"SELECT count(*) FROM ({condition.rows} {where} LIMIT {FEW})"
        return self._sql.execute(counted, values).fetchone()[0]

    def _sets(self, wanted: RowFilter) -> Iterator[Condition]:
        if wanted.agent:
            rows = "SELECT row FROM agents WHERE agent = ?"
            yield Condition(
                tests=(f"number IN ({rows})",),
                values=(wanted.agent,),
                sort="time",
                rows=rows,
                ordered=False,
                other=f"EXISTS ({rows} AND row = number)",
            )
        if asked := phrases(wanted.text):
            rows = f"SELECT number FROM temp.{self._searched(asked)}"
            tests = (f"{{}}number IN ({rows})",)
            yield Condition(tests=tests, values=(), sort="time", rows=rows, ordered=False)

    def _searched(self, asked: list[str]) -> str:
        """Return the name of a table with the numbers of the rows that hold all phrases."""
        match = " AND ".join(f'"{phrase}" *' for phrase in asked)
        (version,) = self._sql.execute("PRAGMA data_version").fetchone()
        known = self._kept.pop(match, None)
        if known is None or known[0] != version:
            table = known[1] if known is not None else f"found_{self._made}"
            self._made += known is None
            self._sql.execute("PRAGMA query_only = OFF")  # it holds for tables in memory, too
            self._sql.execute(
                f"CREATE TEMP TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY)"
            )
            self._sql.execute(f"DELETE FROM temp.{table}")
            self._sql.execute(
                f"INSERT INTO temp.{table} SELECT rowid FROM texts WHERE texts MATCH ?", [match]
            )
            known = (version, table)
            while len(self._kept) >= _KEPT:
                oldest = self._kept.pop(next(iter(self._kept)))[1]
                self._sql.execute(f"DROP TABLE temp.{oldest}")
            self._sql.execute("PRAGMA query_only = ON")
        self._kept[match] = known
        return known[1]


def _equal(wanted: RowFilter) -> Iterator[Condition]:
    columns = {
        "id": wanted.id,
        "group_id": wanted.group_id,
        "task": wanted.task,
        "cause": wanted.cause,
        "mode": wanted.mode,
    }
    for column, value in columns.items():
        if value:
            partial = (f"{column} != ''",) if column == "cause" else ()
            yield Condition(tests=(f"{{}}{column} = ?", *partial), values=(value,), sort="time")
    if wanted.statuses:
        marks = ", ".join("?" * len(wanted.statuses))
        yield Condition(
            tests=(f"{{}}status IN ({marks})",),
            values=tuple(each.value for each in wanted.statuses),
            sort="time" if len(wanted.statuses) == 1 else None,
        )
    if wanted.run_id:
        yield Condition(tests=("{}run_id = ?",), values=(wanted.run_id,))
    if wanted.resources_version is not None:
        tests = ("{}resources_version = ?",)
        yield Condition(tests=tests, values=(wanted.resources_version,))


def _ranges(wanted: RowFilter) -> Iterator[Condition]:
    least = wanted.least_reward
    if least is None and wanted.most_reward is not None:
        least = math.nextafter(-math.inf, 0)  # infinity stands for no reward
    ranges: tuple[tuple[Sort, Any, Any], ...] = (
        ("step", wanted.first_step, wanted.last_step),
        ("reward", least, wanted.most_reward),
    )
    for column, low, high in ranges:
        given = [(sign, each) for sign, each in ((">=", low), ("<=", high)) if each is not None]
        if given:
            yield Condition(
                tests=tuple(f"{{}}{column} {sign} ?" for sign, _ in given),
                values=tuple(each for _, each in given),
                sort=column,
            )
