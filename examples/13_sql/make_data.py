"""Make this example's databases and questions: ``python make_data.py --out data``.

Thirty databases with twenty questions each; those of ten are held out. The same seed gives the same
tables and questions.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

from domains import HELD_OUT, TRAINED, Schema, schemas
from questions import draw, fill

QUESTIONS = 20
"""Questions about each database."""


def make(directory: Path, *, seed: int = 0) -> None:
    """Write a database of each domain, ``train.jsonl`` and ``held_out.jsonl``."""
    directory.mkdir(parents=True, exist_ok=True)
    for split, domains in (("train", TRAINED), ("held_out", HELD_OUT)):
        lines = [
            json.dumps(question)
            for name, schema in schemas(domains).items()
            for question in _database(directory, name, schema, seed)
        ]
        (directory / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _database(directory: Path, name: str, schema: Schema, seed: int) -> list[dict[str, str]]:
    chance = random.Random(f"{name} {seed}")
    path = directory / f"{name}.sqlite"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        fill(connection, schema, chance)
        found: dict[str, str] = {}
        while len(found) < QUESTIONS:
            question = draw(connection, schema, chance)
            found.setdefault(question.text, question.gold)
    return [
        {"id": f"{name}-{number}", "database": path.name, "question": text, "gold": gold}
        for number, (text, gold) in enumerate(found.items())
    ]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_data.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.out, seed=options.seed)


if __name__ == "__main__":
    main()
