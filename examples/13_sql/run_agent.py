"""Runs `program.py` on a question and rewards it for the right rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import database
import program
from agl_langchain import AglCallbackHandler

import agl_core as agl

DATA = Path(__file__).parent / "data"


class QuestionError(ValueError):
    """A question that cannot be rewarded."""


def run_agent(task: agl.Task) -> dict[str, Any]:
    """Answer a question; the handler names each call by its node of the graph."""
    config = {"callbacks": [AglCallbackHandler()]}
    state = program.answer(task.input["question"], DATA / task.input["database"], config)
    return {"query": state["query"], "result": state["result"], "turns": state["turns"]}


def reward(task: agl.Task, output: dict[str, Any], attempt: agl.AttemptRecord) -> agl.Score:
    """Return 1 if the last query gives the rows of the gold query, else 0."""
    del attempt
    path, gold = DATA / task.input["database"], task.input["gold"]
    given = database.run(path, output["query"])
    right = database.matches(given, database.run(path, gold), ordered=database.is_ordered(gold))
    return agl.Score(float(right), "the rows are equal" if right else f"not the rows of: {gold}")


def train_tasks() -> list[agl.Task]:
    """Return the questions about the databases to train on."""
    return [*tasks(DATA / "train.jsonl")]


def held_out_tasks() -> list[agl.Task]:
    """Return the questions about other databases, with other tables."""
    return [*tasks(DATA / "held_out.jsonl")]


def tasks(file: Path) -> Iterator[agl.Task]:
    """Read questions, one JSON object a line.

    Raises:
        QuestionError: a question has no gold query, or that fails or returns no rows, so that any
            query without rows would be right.
    """
    for line in file.read_text(encoding="utf-8").splitlines():
        question = json.loads(line)
        where = f"Question {question.get('id')!r} in {file}"
        if missing := {"id", "database", "question", "gold"} - question.keys():
            raise QuestionError(f"{where} has no {', '.join(sorted(missing))}: add it")
        if not (file.parent / question["database"]).is_file():
            raise QuestionError(
                f"{where}: there is no database {question['database']!r} in {file.parent}; "
                "correct the name, or make the data by make_data.py"
            )
        gold = database.run(file.parent / question["database"], question["gold"])
        if gold.error or gold.is_cut or not gold.rows:
            problem = gold.error or ("returns too many rows" if gold.is_cut else "returns no rows")
            raise QuestionError(
                f"{where}: its gold query {question['gold']!r}: {problem}; correct or remove it"
            )
        yield agl.Task(id=question.pop("id"), input=question)
