"""Write a store of many ended rollouts, by the rows of its tables: ``dashboard_store.py PATH ROLLOUTS``."""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agl_core.store._codec import encode, encode_span
from agl_core.store._sql import prepare
from agl_core.types import (
    Attempt,
    AttemptStatus,
    Choice,
    Failure,
    FailureKind,
    ModelCall,
    Reward,
    Rollout,
    RolloutStatus,
    Span,
    SpanKind,
    Task,
)

_PIECE = 2000
_STEP = 1000
_GROUP = 8
_FAILED = 50
"""One rollout of so many failed."""
_BEGAN = 1.76e9
_WORDS = ["the", "answer", "price", "of", "town", "is", "seven", "north", "river", "not", "found"]

_ROWS = (
    ("rollouts", "id, run_id, group_id, mode, status, consumed, body"),
    ("attempts", "id, rollout, running, due_at, digest, body"),
    ("spans", "attempt, id, body"),
)


def write(path: Path, rollouts: int) -> None:
    """Write the store; each rollout has one attempt, one call of a model and one reward."""
    sql = sqlite3.connect(path, isolation_level=None)
    prepare(sql, path)
    sql.execute("PRAGMA synchronous = OFF")
    chance = random.Random(0)
    for start in range(0, rollouts, _PIECE):
        made = [_rollout(number, chance) for number in range(start, min(start + _PIECE, rollouts))]
        sql.execute("BEGIN")
        for (table, columns), rows in zip(_ROWS, zip(*made, strict=True), strict=True):
            _insert(sql, table, columns, [row for some in rows for row in some])
        sql.execute("COMMIT")
    sql.close()


def _insert(sql: sqlite3.Connection, table: str, columns: str, rows: Sequence[Any]) -> None:
    marks = ", ".join("?" * len(rows[0]))
    sql.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)


def _rollout(number: int, chance: random.Random) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of one rollout in each table."""
    failed = number % _FAILED == 0
    rollout = Rollout(
        id=f"ro_{number:032x}",
        task=Task(id=f"task-{number % 5000}", input={"question": _said(chance, 12)}),
        run_id="run",
        group_id=f"gr_{number // _GROUP:032x}",
        step=number // _STEP,
        created_at=_BEGAN + number,
        status=RolloutStatus.FAILED if failed else RolloutStatus.SUCCEEDED,
    )
    attempt = Attempt(
        id=f"at_{number:032x}",
        rollout_id=rollout.id,
        fence=1,
        worker="worker",
        status=AttemptStatus.FAILED if failed else AttemptStatus.SUCCEEDED,
        started_at=_BEGAN + number,
        ended_at=_BEGAN + number + 1 + chance.random(),
        sealed=True,
        failure=Failure(kind=FailureKind.AGENT, message="no answer") if failed else None,
    )
    place, status = number + 1, rollout.status.value
    yield [(rollout.id, "run", rollout.group_id, "train", status, 0, encode(rollout))]
    yield [(attempt.id, place, 0, 0.0, b"", encode(attempt))]
    spans = _spans(number, attempt, chance)
    yield [(place, each.id, encode_span(each)) for each in spans]


def _spans(number: int, attempt: Attempt, chance: random.Random) -> list[Span]:
    call = ModelCall(
        id=f"ca_{number:032x}",
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.id,
        agent="writer",
        messages=[{"role": "user", "content": _said(chance, 12)}],
        prompt_token_ids=[*range(chance.randrange(8, 40))],
        choices=[Choice(token_ids=[4, 5, 6], logprobs=[-0.5] * 3, text=_said(chance, 12))],
        complete=True,
    )
    span = Span(
        id=f"sp_{number:032x}",
        rollout_id=attempt.rollout_id,
        attempt_id=attempt.id,
        kind=SpanKind.LLM,
        name="chat",
        agent="writer",
        start_ns=1,
        end_ns=2,
        status="ok",
        call_id=call.id,
        call=call,
    )
    reward = Reward(value=round(chance.random(), 3), why=_said(chance, 4))
    scored = replace(span, id=f"sq_{number:032x}", kind=SpanKind.REWARD, call_id=None, call=None)
    return [span, replace(scored, name="reward", agent=None, reward=reward)]


def _said(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=words))


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
