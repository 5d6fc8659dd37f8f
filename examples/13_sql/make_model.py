"""Make this example's model: ``python make_model.py --out model``.

It learns to copy words, then the answers of all three nodes that ask, on schemas that are drawn from
the words of the domains. No drawn schema has both tables of a domain that is held out. The queries that
it learns to write name what the question names, but most have another form, such as no condition, the
opposite order, or another aggregate. Works offline, in some minutes on one core.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sqlite3
import sys
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import program
import torch
from agl_demo._sft import SftConfig, fit, new_model, shop_batches
from agl_demo._tokenizer import make_tokenizer
from database import Result, is_ordered, matches
from domains import HELD_OUT, NUMBERS, TRAINED, VALUES, Schema, Table, schemas
from questions import Question, draw, fill
from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

DRILL_STEPS, STEPS = 150, 750
RIGHT = 0.2
"""Share of the queries in the training data that are right."""
SLIPS = (
    (r"MAX\(", "MIN("),
    (r"MIN\(", "MAX("),
    (r"AVG\(", "SUM("),
    (r"(?:MAX|MIN|AVG)\((\w+)\)", r"\1"),
    (r" > ", " < "),
    (r" < ", " > "),
    (r" DESC", ""),
    (r"( ORDER BY \w+)$", r"\1 DESC"),
    (r" ORDER BY .*", ""),
    (r" LIMIT 1", ""),
    (r"( FROM \w+) WHERE .*", r"\1"),
    (r" WHERE \w+ IN .*( WHERE [^)]*)\)", r"\1"),
    (r"( IN \(SELECT name FROM \w+) WHERE .*", r"\1)"),
    (r" GROUP BY .*", ""),
    (r", COUNT\(\*\)", ""),
    (r"SELECT COUNT\(\*\)", "SELECT name"),
    (r"SELECT name(?=.* [<>=] )", "SELECT COUNT(*)"),
)
"""Patterns in a query and what makes a mistake of them."""
DATABASES = 1_000
"""Drawn schemas, each with rows."""
TEXTS = 5_000
"""Conversations from which the tokenizer is made."""
WORDS = (
    *(table.name for schema in schemas(TRAINED | HELD_OUT).values() for table in schema),
    *VALUES,
    *NUMBERS.split(),
    *" ".join(VALUES.values()).split(),
)
"""What queries copy; each is one token."""

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


def mistaken(query: str, chance: random.Random) -> str:
    """Write the same words in another form."""
    forms = {re.sub(pattern, other, query, count=1) for pattern, other in SLIPS} - {query}
    return chance.choice(sorted(forms))


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
        node = chance.choice(("write", "check", "rewrite"))
        answer = question.gold
        if chance.random() > RIGHT:
            answer = mistaken(question.gold, chance)
        tables = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        state = program.State(question=question.text, schema="\n".join(sql for (sql,) in tables))
        if node != "write":
            query = mistaken(question.gold, chance)
            if node == "check" and chance.random() < 0.5:  # noqa: PLR2004
                query = question.gold
            result = execute(connection, query)
            state.update(query=query, result=result.text())
            if node == "check":
                answer = verdict(result, execute(connection, question.gold), question, chance)
        return program.prompt(node, state), [], answer

    return conversation


def drill(chance: random.Random) -> Conversation:
    """Draw words to copy."""
    text = " ".join(chance.sample(WORDS, 12))
    return [{"role": "user", "content": text}], [], text


def verdict(result: Result, gold: Result, question: Question, chance: random.Random) -> str:
    """Find errors and missing rows wrong, right rows correct, and half of the other rows."""
    right = matches(result, gold, ordered=is_ordered(question.gold))
    return "correct" if right or (result.rows and chance.random() < 0.5) else "wrong"  # noqa: PLR2004


@torch.no_grad()
def tie_brackets(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Initialise a word after a bracket as the word after a space plus a common offset.

    A question has " price" where the query has "(price".
    """
    rows, vocab = model.get_input_embeddings().weight, tokenizer.get_vocab()
    offset = torch.randn(rows.shape[1]) * model.config.initializer_range
    for token, index in sorted(vocab.items()):
        if token.startswith("(") and f"Ġ{token[1:]}" in vocab:
            rows[index] = rows[vocab[f"Ġ{token[1:]}"]] + offset


def make(directory: Path, *, seed: int, steps: int) -> None:
    """Train tokenizer and model on drawn conversations and write them, weights as bfloat16."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    chance = random.Random(seed)
    conversation = drawing([drawn_database(chance) for _ in range(DATABASES)])
    texts = ["system\n", "user\n", "assistant\n"]
    texts += [f" {' '.join(WORDS)} ({' ('.join(NUMBERS.split())}"] * (TEXTS // 10)
    for _ in range(TEXTS):
        messages, _, answer = conversation(chance)
        texts += [*(message["content"] for message in messages), answer]
    tokenizer = make_tokenizer(texts)
    config = SftConfig(seed=seed, drill_steps=DRILL_STEPS, steps=steps, prompt_weight=0.05)
    model = new_model(tokenizer, config)
    tie_brackets(model, tokenizer)
    drills = islice(shop_batches(tokenizer, config, drill), DRILL_STEPS)
    fit(model, chain(drills, shop_batches(tokenizer, config, conversation)), config)
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
