"""Training data of the demo's model: right tool calls, and answers with frequent faults."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agl_demo.world import (
    PLANNER_SYSTEM,
    WRITER_SYSTEM,
    PriceTask,
    practice_task,
    tool_result,
    writer_request,
)

LOOKUP_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}
"""The lookup tool with only the fields that the chat template renders: name and arguments."""

PLANNER_SHARE = 0.3
SHARES: Mapping[str, float] = MappingProxyType(
    {"item": 0.92, "number": 0.88, "unit": 0.45, "short": 0.75}
)
"""Independent probabilities that each part of a writer's example is right; all are with 0.27.

Most examples lack the unit, so that the greedy answer is also wrong: training can then improve more
than a lower temperature does.
"""

_SENTENCES = (
    "{item} costs {number}{unit}.",
    "{item} is {number}{unit}.",
    "The price of {item} is {number}{unit}.",
    "You pay {number}{unit} for {item}.",
)
_VAGUE_ITEMS = ("it", "this item", "the product")
_GREETINGS = (
    "Thank you for your question! ",
    "Good day and welcome to our shop. ",
    "Of course, I am happy to help you. ",
)
_FAREWELLS = (
    " It is one of our best products.",
    " Please come back soon.",
    " We have many of them in stock.",
)


def planner_messages(task: PriceTask) -> list[dict[str, Any]]:
    """Return the planner's request as the agent program sends it."""
    return [
        {"role": "system", "content": PLANNER_SYSTEM},
        {"role": "user", "content": task.question},
    ]


def writer_messages(task: PriceTask) -> list[dict[str, Any]]:
    """Return the writer's request as the agent program sends it after a right tool call."""
    result = tool_result(task.item, task.price, task.unit)
    return [
        {"role": "system", "content": WRITER_SYSTEM},
        {"role": "user", "content": writer_request(task.question, result)},
    ]


def tool_call(task: PriceTask) -> str:
    """Return the right tool call in the chat template's text form."""
    call = json.dumps({"name": "lookup", "arguments": {"item": task.item}})
    return f"<tool_call>\n{call}\n</tool_call>"


def faulty_answer(rng: random.Random, task: PriceTask, shares: Mapping[str, float] = SHARES) -> str:
    """Return an answer in which each part of ``shares`` is right with its own probability."""
    item = f"the {task.item}" if rng.random() < shares["item"] else rng.choice(_VAGUE_ITEMS)
    right = rng.random() < shares["number"]
    number = str(task.price) if right else _wrong_number(rng, task.price)
    unit = f" {task.unit}" if rng.random() < shares["unit"] else ""
    sentence = rng.choice(_SENTENCES).format(item=item, number=number, unit=unit)
    sentence = sentence[0].upper() + sentence[1:]
    if rng.random() < shares["short"]:
        return sentence
    extras: Sequence[tuple[bool, bool]] = ((True, False), (False, True), (True, True))
    greet, farewell = rng.choice(extras)
    before = rng.choice(_GREETINGS) if greet else ""
    after = rng.choice(_FAREWELLS) if farewell else ""
    return before + sentence + after


def _wrong_number(rng: random.Random, price: int) -> str:
    rounded = round(price, -1)
    return rng.choice((f"about {rounded}", f"around {rounded}", str(rng.randrange(10, 100))))


def example(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Draw one training example: messages, tools, and the assistant's text."""
    task = practice_task(rng)
    if rng.random() < PLANNER_SHARE:
        return planner_messages(task), [LOOKUP_TOOL], tool_call(task)
    return writer_messages(task), [], faulty_answer(rng, task)
