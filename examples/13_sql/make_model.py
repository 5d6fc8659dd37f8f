"""Make this example's model: ``python make_model.py --out model``.

It learns the answers of all three nodes that ask, on schemas that are drawn from the words of the
domains. No drawn schema has both tables of a domain that is held out, and most of the queries that it
learns to write are wrong. Works offline, in some minutes on one core.
"""

from __future__ import annotations

import argparse
import logging
import random
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import program
import torch
from agl_demo._sft import SftConfig, fit, new_model, shop_batches
from agl_demo._tokenizer import make_tokenizer
from database import Result, is_ordered, matches
from domains import HELD_OUT, NUMBERS, TRAINED, VALUES, Schema, Table, schemas
from questions import TEMPLATES, Question, draw, fill

STEPS = 800
RIGHT = 0.4
"""Share of the queries in the training data that are right."""
DATABASES = 1_000
"""Drawn schemas, each with rows."""
TEXTS = 5_000
"""Conversations from which the tokenizer is made."""

Database = tuple[sqlite3.Connection, Schema]
Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]], str]
"""Messages, tools and the answer."""


def drawn_schema(chance: random.Random) -> Schema:
    """Draw a schema of any words, but none with the tables of a domain that is held out."""
    held_out = [{table.name for table in schema} for schema in schemas(HELD_OUT).values()]
    names = [table.name for schema in schemas(TRAINED | HELD_OUT).values() for table in schema]
    first, second = chance.sample(names, 2)
    if {first, second} in held_out:
        return drawn_schema(chance)
    texts = chance.sample([*VALUES], 2)
    count = chance.randint(2, 4)
    numbers = chance.sample(NUMBERS.split(), count)
    cut = chance.randint(1, count - 1)
    return Schema(
        Table(first, texts[0], tuple(numbers[:cut])), Table(second, texts[1], tuple(numbers[cut:]))
    )


def drawn_database(chance: random.Random) -> Database:
    """Draw a schema and rows, in memory."""
    schema = drawn_schema(chance)
    connection = sqlite3.connect(":memory:")
    fill(connection, schema, chance)
    return connection, schema


def mistaken(question: Question, schema: Schema, chance: random.Random) -> str:
    """Write another query: of another kind, with another word, or with a word left out."""
    kind = chance.choice(("template", "word", "word", "missing"))
    if kind == "template":
        return question._replace(template=chance.randrange(len(TEMPLATES))).gold
    if kind == "missing":
        words = question.gold.split()
        del words[chance.randrange(len(words))]
        return " ".join(words)
    other = next(table for table in schema if table.name != question.slots["t"])
    slots = dict(question.slots)
    changes: dict[str, Callable[[], str]] = {
        "t": lambda: other.name,
        "c": lambda: chance.choice((other.text, slots["n"])),
        "n": lambda: chance.choice((*other.numbers, slots["c"])),
        "f": lambda: schema.second.name,
        "d": lambda: schema.second.text,
    }
    used = [slot for slot in changes if f"{{{slot}}}" in TEMPLATES[question.template][1]]
    slot = chance.choice(used)
    slots[slot] = changes[slot]()
    return question._replace(slots=slots).gold


def execute(connection: sqlite3.Connection, query: str) -> Result:
    """Run a query of ours."""
    try:
        return Result(tuple(connection.execute(query).fetchall()))
    except sqlite3.Error as error:
        return Result(error=str(error))


def drawing(databases: list[Database]) -> Callable[[random.Random], Conversation]:
    """Return a function that draws what a node reads and its answer."""

    def conversation(chance: random.Random) -> Conversation:
        connection, schema = chance.choice(databases)
        question = draw(connection, schema, chance)
        node = chance.choice(("write", "write", "check", "rewrite"))
        answer = question.gold
        if chance.random() > RIGHT:
            answer = mistaken(question, schema, chance)
        tables = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        state = program.State(question=question.text, schema="\n".join(sql for (sql,) in tables))
        if node != "write":
            query = mistaken(question, schema, chance)
            if node == "check" and chance.random() < RIGHT:
                query = question.gold
            result = execute(connection, query)
            state.update(query=query, result=result.text())
            if node == "check":
                answer = verdict(result, execute(connection, question.gold), question, chance)
        return program.prompt(node, state), [], answer

    return conversation


def verdict(result: Result, gold: Result, question: Question, chance: random.Random) -> str:
    """Find errors and missing rows wrong, right rows correct, and half of the other rows."""
    right = matches(result, gold, ordered=is_ordered(question.gold))
    return "correct" if right or (result.rows and chance.random() < 0.5) else "wrong"  # noqa: PLR2004


def make(directory: Path, *, seed: int, steps: int) -> None:
    """Train tokenizer and model on drawn conversations and write them, weights as bfloat16."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    chance = random.Random(seed)
    conversation = drawing([drawn_database(chance) for _ in range(DATABASES)])
    texts = ["system\n", "user\n", "assistant\n"]
    for _ in range(TEXTS):
        messages, _, answer = conversation(chance)
        texts += [*(message["content"] for message in messages), answer]
    tokenizer = make_tokenizer(texts)
    config = SftConfig(seed=seed, drill_steps=0, steps=steps, prompt_weight=0.1)
    model = new_model(tokenizer, config)
    fit(model, shop_batches(tokenizer, config, conversation), config)
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_model.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    make(options.out, seed=options.seed, steps=options.steps)


if __name__ == "__main__":
    main()
