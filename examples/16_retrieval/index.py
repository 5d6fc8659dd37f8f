"""The index on disk: full text in SQLite, ranked by BM25.

``python index.py --out index.sqlite`` writes it from the texts of `world`, offline, in a second.
"""

from __future__ import annotations

import argparse
import random
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

TOP = 3
"""Number of chunks that a search returns at most."""
MOST_WORDS = 32
"""Words of a query that are searched for; the rest is left out."""
_COMMON = (
    "a an and are as at be by for from has he her his in is it its not of on or she that the they "
    "this to was were what when where which who whose will with"
)
STOP_WORDS = frozenset(_COMMON.split())
_VERSION = 1601
"""``PRAGMA user_version`` of a file that `build` has written."""


class IndexFileError(Exception):
    """The file is missing, damaged, or no index of this program."""

    def __init__(self, path: Path, why: str) -> None:
        """Name the file and what is wrong with it."""
        super().__init__(f"{path}: {why}. Make it again: python {__file__} --out {path}")


def build(path: Path, chunks: Iterable[str]) -> None:
    """Write an index; a file that is there is replaced once the new one is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as folder:
        new = Path(folder) / path.name
        with closing(sqlite3.connect(new)) as data:
            data.execute("CREATE VIRTUAL TABLE chunks USING fts5(text)")
            data.executemany("INSERT INTO chunks (text) VALUES (?)", ((text,) for text in chunks))
            data.execute(f"PRAGMA user_version = {_VERSION}")
            data.commit()
        new.replace(path)


def check(path: Path) -> int:
    """Return the number of chunks of an index.

    Raises:
        IndexFileError: the file is missing, damaged, or another file.
    """
    if not path.is_file():
        raise IndexFileError(path, "there is no such file")
    try:
        with closing(_opened(path)) as data:
            version = data.execute("PRAGMA user_version").fetchone()[0]
            damage = data.execute("PRAGMA quick_check(1)").fetchone()[0]
            if version != _VERSION:
                raise IndexFileError(path, "the file is not an index of this program")
            if damage != "ok":
                raise IndexFileError(path, f"the index is damaged ({damage})")
            return data.execute("SELECT count(*) FROM chunks").fetchone()[0]
    except sqlite3.Error as error:
        raise IndexFileError(path, f"the index cannot be read ({error})") from error


def words(query: str) -> list[str]:
    """Return the words of a query that are searched for."""
    found = re.findall(r"[^\W_]+", query.lower())
    return [word for word in dict.fromkeys(found) if word not in STOP_WORDS][:MOST_WORDS]


def search(path: Path, query: str, *, top: int = TOP) -> list[str]:
    """Return the best chunks for a query, best first; any text is a query.

    Raises:
        IndexFileError: the file cannot be read.
    """
    found = words(query)
    if not found:
        return []
    # Quoted, a word is never an operator of FTS5's syntax.
    expression = " OR ".join(f'"{word}"' for word in found)
    try:
        with closing(_opened(path)) as data:
            rows = data.execute(
                "SELECT text FROM chunks WHERE chunks MATCH ? ORDER BY rank, rowid LIMIT ?",
                (expression, top),
            )
            return [text for (text,) in rows]
    except sqlite3.Error as error:
        raise IndexFileError(path, f"the index cannot be read ({error})") from error


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def main() -> None:
    """Run the command line."""
    from world import SEED, draw_world  # noqa: PLC0415  a server of another corpus needs no world

    parser = argparse.ArgumentParser(prog="python index.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")
    options = parser.parse_args()
    try:
        build(options.out, draw_world(random.Random(SEED)).chunks())
    except OSError as error:
        sys.exit(f"error: cannot write {options.out} ({error.strerror}). Give another --out")
    sys.stdout.write(f"{check(options.out)} chunks in {options.out}\n")


if __name__ == "__main__":
    main()
