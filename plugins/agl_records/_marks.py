"""Marks of calls, which people set: a file of SQLite, apart from the run's store."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from agl_core.clocks import wall
from agl_core.errors import StoreError
from agl_core.text import replaced

MarkVerdict = Literal["", "good", "bad"]
"""What a person says of an answer; empty for none."""

MARKS_FILE: Final = "marks.db"
"""Name of the file in a run's directory."""
_APPLICATION: Final = 0x61676C6D
"""Says in the file's header that it has marks."""
_VERSION: Final = 1
_BUSY_S: Final = 5.0
_PLACE: Final = "attempt = ? AND call = ? AND choice = ?"
_TABLE: Final = """
CREATE TABLE marks (
    call TEXT NOT NULL, choice INTEGER NOT NULL, rollout TEXT NOT NULL, attempt TEXT NOT NULL,
    agent TEXT NOT NULL, task TEXT NOT NULL, verdict TEXT NOT NULL, note TEXT NOT NULL,
    correction TEXT NOT NULL, by TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (attempt, call, choice)
) WITHOUT ROWID
"""


class MarkedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a model call."""

    call: str
    choice: int = 0
    """Index of the choice of an ``n > 1`` call."""
    rollout: str
    attempt: str
    agent: str
    """Its alias or, without one, its name."""
    task: str = ""


class Mark(MarkedAnswer, frozen=True, kw_only=True):
    """What a person says of one answer."""

    verdict: MarkVerdict = ""
    note: str = ""
    correction: str = ""
    """The text that the agent should have answered; empty for none."""
    by: str = ""
    """Who set it; empty if not given."""
    at: float = 0.0
    """Unix seconds of the last change."""

    @property
    def place(self) -> tuple[float, str, str, int]:
        """Its place in the list."""
        return (self.at, self.attempt, self.call, self.choice)


class MarkChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a mark; None keeps a field as it is."""

    verdict: MarkVerdict | None = None
    note: str | None = None
    correction: str | None = None
    by: str = ""


class MarkFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which marks to read; an empty field is no condition."""

    rollout: str = ""
    agent: str = ""
    verdict: MarkVerdict | Literal["none"] = ""
    """``none``: notes and corrections without a verdict."""

    def conditions(self) -> tuple[str, list[str]]:
        """Return the condition in SQL and its values."""
        verdict = "" if self.verdict == "none" else self.verdict
        asked = {"rollout": self.rollout, "agent": self.agent}
        given = {name: value for name, value in asked.items() if value}
        given |= {"verdict": verdict} if self.verdict else {}
        return " AND ".join(f"{name} = ?" for name in given) or "TRUE", [*given.values()]


class Marks:
    """The marks in a file.

    Every operation is a short transaction of its own, so several programs may have the file open.
    Without a file there are no marks; the first change makes it.
    """

    def __init__(self, path: Path) -> None:
        """Set the file, which need not exist."""
        self.path = path

    def read(
        self,
        wanted: MarkFilter | None = None,
        *,
        after: Sequence[Any] | None = None,
        limit: int = -1,
    ) -> list[Mark]:
        """Return marks, the last changed first.

        Args:
            wanted: Which marks; None for all.
            after: Only marks after this `Mark.place`.
            limit: Most marks; -1 for all.

        Raises:
            StoreError: the file is no file of marks, damaged, newer or locked.
        """
        if not self.path.exists():
            return []
        condition, values = (wanted or MarkFilter()).conditions()
        place: list[Any] = []
        if after is not None:
            condition += " AND (at, attempt, call, choice) < (?, ?, ?, ?)"
            place = [*after]
        names = Mark.__struct_fields__
        sql = (
            f"SELECT {', '.join(names)} FROM marks WHERE {condition} "  # noqa: S608 names of fields
            f"ORDER BY at DESC, attempt DESC, call DESC, choice DESC LIMIT ?"
        )
        with self._opened("rw") as file:
            rows = file.execute(sql, [*values, *place, limit]).fetchall() if _made(file) else []
            return [msgspec.convert(dict(zip(names, row, strict=True)), Mark) for row in rows]

    def agents(self) -> list[str]:
        """Return the agents that have marks, sorted.

        Raises:
            StoreError: see `read`.
        """
        return sorted({mark.agent for mark in self.read()})

    def change(self, answer: MarkedAnswer, change: MarkChange) -> Mark | None:
        """Change the mark of an answer; a mark without verdict, note and correction is deleted.

        Returns:
            The mark; None if there is none any more.

        Raises:
            StoreError: the file cannot be written, or see `read`.
        """
        with self._opened("rwc") as file:
            file.execute("BEGIN IMMEDIATE")
            _make(file)
            known = _known(file, answer)
            changed = _changed(answer, known, change)
            if changed.verdict or changed.note or changed.correction:
                names = Mark.__struct_fields__
                file.execute(
                    f"INSERT OR REPLACE INTO marks ({', '.join(names)}) "  # noqa: S608
                    f"VALUES ({', '.join('?' * len(names))})",
                    msgspec.structs.astuple(changed),
                )
            else:
                file.execute(f"DELETE FROM marks WHERE {_PLACE}", _key(answer))  # noqa: S608
                changed = None
            file.execute("COMMIT")
        return changed

    @contextmanager
    def _opened(self, mode: Literal["rw", "rwc"]) -> Generator[sqlite3.Connection, None, None]:
        """Open the file for one operation; leaving without COMMIT undoes what was not committed."""
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        try:
            file = sqlite3.connect(address, uri=True, timeout=_BUSY_S, isolation_level=None)
            try:
                self._check(file)
                yield file
            finally:
                file.close()
        except (sqlite3.Error, msgspec.ValidationError) as error:
            raise StoreError(_message(self.path, error)) from error

    def _check(self, file: sqlite3.Connection) -> None:
        """Check that the file is empty or has marks of a known version.

        Raises:
            StoreError: it is another file.
        """
        if not file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return
        application = file.execute("PRAGMA application_id").fetchone()[0]
        version = file.execute("PRAGMA user_version").fetchone()[0]
        if application != _APPLICATION:
            raise StoreError(
                f"{str(self.path)!r} is a database, but not one of marks: name another file for them"
            )
        if version > _VERSION:
            raise StoreError(
                f"The marks in {str(self.path)!r} have form {version}, of a newer agl-core; this one "
                f"reads form {_VERSION}: upgrade agl-core"
            )


def _message(path: Path, error: Exception) -> str:
    said = str(error)
    if "locked" in said:
        cause = "another program keeps the file locked: try again"
    elif "readonly" in said or "unable to open" in said:
        cause = "make the file and its folder writable"
    else:
        cause = "the file is damaged: move it away to begin with no marks"
    return f"Marks in {str(path)!r}: {said}; {cause}"


def _made(file: sqlite3.Connection) -> bool:
    return bool(file.execute("PRAGMA user_version").fetchone()[0])


def _make(file: sqlite3.Connection) -> None:
    if not _made(file):
        file.execute(_TABLE)
        file.execute(f"PRAGMA application_id = {_APPLICATION}")
        file.execute(f"PRAGMA user_version = {_VERSION}")


def _known(file: sqlite3.Connection, answer: MarkedAnswer) -> tuple[Any, ...] | None:
    sql = f"SELECT verdict, note, correction, by FROM marks WHERE {_PLACE}"  # noqa: S608 constant
    return file.execute(sql, _key(answer)).fetchone()


def _key(answer: MarkedAnswer) -> list[Any]:
    return [replaced(answer.attempt), replaced(answer.call), answer.choice]


def _changed(answer: MarkedAnswer, known: tuple[Any, ...] | None, change: MarkChange) -> Mark:
    verdict, note, correction, by = known or ("", "", "", "")
    place = {name: _storable(value) for name, value in msgspec.structs.asdict(answer).items()}
    return Mark(
        **place,
        verdict=verdict if change.verdict is None else change.verdict,
        note=note if change.note is None else replaced(change.note).strip(),
        correction=correction if change.correction is None else replaced(change.correction).strip(),
        by=replaced(change.by).strip() or by,
        at=wall(),
    )


def _storable(value: Any) -> Any:
    return replaced(value) if isinstance(value, str) else value
