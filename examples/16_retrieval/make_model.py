"""Make this example's model: ``python make_model.py --out model``.

Qwen2's architecture with some 700,000 weights. It learns from drawn conversations with the
retriever, over other worlds than that of the index, whose researcher makes each fault of `RIGHT`
often. Works offline, in some minutes on one core.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import index
from agl_demo._sft import SftConfig
from agl_demo.small import make
from program import SYSTEM
from retriever import NOTHING
from world import (
    COUNTRIES,
    FIRST,
    LAST,
    PLACE_FIRST,
    PLACE_LAST,
    TITLE_FIRST,
    TITLE_LAST,
    Hop,
    Question,
    draw_world,
    questions,
)

RIGHT: Mapping[str, float] = {
    "query": 0.7,  # both words of the entity, and the word of the relation
    "hop": 0.4,  # searches for the second fact, where there is one
    "read": 0.7,  # reads the chunk about the entity, not another one
    "tags": 0.6,  # encloses the answer in tags
    "short": 0.5,  # writes the answer alone between them
}
"""What can be right in the training conversations, and how often it is; independent of each other."""
CONFIG = SftConfig(drill_steps=300, steps=1200, prompt_weight=0.05)
WORLDS = 40
"""Worlds of the conversations. They contradict each other, so none can be learned by heart."""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
]
WORDS = (*FIRST, *LAST, *PLACE_FIRST, *PLACE_LAST, *TITLE_FIRST, *TITLE_LAST, *COUNTRIES)

Example = tuple[list[dict[str, Any]], list[dict[str, Any]], str]
Library = Sequence[tuple[Path, Sequence[Question]]]
"""Indexes, each with the questions about its world."""


def library(folder: Path, seed: int) -> Library:
    """Write the indexes of worlds whose names are not held out."""
    made: list[tuple[Path, Sequence[Question]]] = []
    for number in range(WORLDS):
        world = draw_world(random.Random(f"{seed} {number}"), ("train",), people=150, works=200)
        file = folder / f"{number}.sqlite"
        index.build(file, world.chunks())
        made.append((file, questions(world, "train")))
    return made


def draw(chance: random.Random, worlds: Library) -> Example:
    """Draw a conversation up to one of its turns, and the researcher's text in that turn."""
    file, asked = chance.choice(worlds)
    question = chance.choice(asked)
    turns = converse(chance, file, question)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": question.text},
    ]
    last = chance.randrange(len(turns))
    for text, result in turns[:last]:
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "tool", "content": result})
    return messages, TOOLS, turns[last][0]


def converse(chance: random.Random, file: Path, question: Question) -> list[tuple[str, str]]:
    """Return the researcher's texts, each with what the retriever returns for it."""

    def right(part: str) -> bool:
        return chance.random() < RIGHT[part]

    turns: list[tuple[str, str]] = []
    entity = question.hops[0].entity
    for number, hop in enumerate(question.hops):
        if number and not right("hop"):
            break
        query = [*entity.split(), hop.word]
        if not right("query"):
            del query[-chance.randint(1, 2)]
        found = index.search(file, " ".join(query))
        text = f'<tool_call>\n{{"name": "search", "arguments": {{"query": "{" ".join(query)}"}}}}'
        turns.append((f"{text}\n</tool_call>", "\n".join(found) or NOTHING))
        if not found:
            return [*turns, ("I do not know.", "")]
        entity = read(chance, found, entity, hop, right=right("read"))
    return [*turns, (answer(chance, entity, tags=right("tags"), short=right("short")), "")]


def read(chance: random.Random, found: Sequence[str], entity: str, hop: Hop, *, right: bool) -> str:
    """Return what a chunk says: the one about the entity, if there is one, or any other."""
    about = [chunk for chunk in found if chunk.startswith(entity) and f" {hop.word} " in chunk]
    others = [chunk for chunk in found if chunk not in about]
    chunk = chance.choice(about or found) if right or not others else chance.choice(others)
    return re.split(r" born in | town in | by ", chunk.removesuffix("."))[-1]


def answer(chance: random.Random, entity: str, *, tags: bool, short: bool) -> str:
    """Return the last text of a conversation."""
    if not short:
        entity = chance.choice(("I think it is {}", "It may be {} or so")).format(entity)
    if tags:
        return f"<answer> {entity} </answer>"
    return chance.choice((f"So: {entity}", f"<answer> {entity}"))


def drill(chance: random.Random) -> Example:
    """Return random words to copy."""
    text = " ".join(chance.choices(WORDS, k=chance.randint(6, 14)))
    return [{"role": "user", "content": text}], [], text


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_model.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    with tempfile.TemporaryDirectory() as folder:
        drawn = partial(draw, worlds=library(Path(folder), options.seed))
        make(options.out, drawn, replace(CONFIG, seed=options.seed), drill=drill)


if __name__ == "__main__":
    main()
