"""The shop: its items, the customers' questions, both agents' prompts and the scorer.

The agent program and the script that creates the model both use these texts, so that the model is
trained on exactly the prompts that the program sends.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    "red blue green black white small large old new round square heavy light soft hard wooden "
    "plastic metal glass cheap fancy warm cold silent bright dark short long thin wide"
)
NOUNS = _words(
    "lamp chair table desk mug plate bowl spoon fork knife pot pan kettle towel pillow blanket "
    "rug mirror clock vase basket box shelf stool bench ladder hammer saw drill brush broom "
    "bucket hose rake tent rope bag hat coat scarf glove boot belt watch ring book pen pencil "
    "ruler globe radio phone camera mouse cable piano drum flute guitar ball kite puzzle doll"
)
UNITS = ("euros", "dollars", "pounds", "francs", "crowns", "yen")
QUESTION_FORMS = (
    "How much is the {item}?",
    "What does the {item} cost?",
    "What is the price of the {item}?",
    "Price of the {item}, please.",
    "Tell me the price of the {item}.",
    "I want to buy a {item}. How much is it?",
    "Can you tell me what a {item} costs?",
    "What do you charge for the {item}?",
)

PLANNER_SYSTEM = "You are the planner. Call one tool."
WRITER_SYSTEM = "You are the writer. One short sentence: item, exact price, unit."
MAX_WORDS = 9
"""Maximum number of words of a short answer."""

_SHOP_SEED = 7
_HELD_OUT_PAIRS = 300
_HEDGES = frozenset(_words("about around almost nearly roughly approximately not or and"))
_WORD = re.compile(r"-?\w+(?:[.,]\d+)*")
_PLAIN_SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ]*\.")

Split = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True)
class PriceTask:
    """One customer's question and the facts of the right answer."""

    question: str
    item: str
    price: int
    unit: str


def _pairs() -> Mapping[Split, tuple[str, ...]]:
    items = [f"{adjective} {noun}" for adjective in ADJECTIVES for noun in NOUNS]
    random.Random(_SHOP_SEED).shuffle(items)
    return MappingProxyType(
        {"held_out": tuple(items[:_HELD_OUT_PAIRS]), "train": tuple(items[_HELD_OUT_PAIRS:])}
    )


def draw_price(rng: random.Random) -> tuple[int, str]:
    """Draw a two-digit price and its unit."""
    return rng.randrange(10, 100), rng.choice(UNITS)


def _price_list() -> Mapping[str, tuple[int, str]]:
    rng = random.Random(_SHOP_SEED + 1)
    return MappingProxyType({item: draw_price(rng) for item in sorted(sum(ITEMS.values(), ()))})


ITEMS = _pairs()
"""Item names by split; the splits share words, but no adjective-noun pair."""
PRICES = _price_list()
"""The price list: item name to (price, unit)."""


def tasks(split: Split, count: int, *, seed: int) -> list[PriceTask]:
    """Draw ``count`` questions about items of one split.

    No item repeats before every item of the split has occurred once.
    """
    rng = random.Random(f"{split}-{seed}")
    drawn: list[PriceTask] = []
    while len(drawn) < count:
        items = list(ITEMS[split])
        rng.shuffle(items)
        drawn += [_ask(rng, item, *PRICES[item]) for item in items]
    return drawn[:count]


def practice_task(rng: random.Random) -> PriceTask:
    """Draw a question about a training item with a random price.

    The model is created from these questions, so it must read the prices and cannot learn the
    price list.
    """
    return _ask(rng, rng.choice(ITEMS["train"]), *draw_price(rng))


def _ask(rng: random.Random, item: str, price: int, unit: str) -> PriceTask:
    return PriceTask(rng.choice(QUESTION_FORMS).format(item=item), item, price, unit)


def lookup_price(item: str) -> str:
    """Return the item's price as JSON, as the result of the planner's tool call.

    Raises:
        ValueError: the shop does not sell this item.
    """
    if item not in PRICES:
        raise ValueError(f"no item called {item!r} in this shop")
    price, unit = PRICES[item]
    return tool_result(item, price, unit)


def tool_result(item: str, price: int, unit: str) -> str:
    """Return a price in the lookup tool's format."""
    return json.dumps({"item": item, "price": f"{price} {unit}"})


def writer_request(question: str, result: str) -> str:
    """Return the user message for the writer."""
    return f"Question: {question}\nResult: {result}"


_WRONG = {
    "item": "the item is not named",
    "number": "the exact price is not the only number",
    "unit": "the unit of the price is not the only unit",
    "short": f"it is not one plain sentence of at most {MAX_WORDS} words",
}
"""What is wrong with an answer, by part of its `score`."""


def score(task: PriceTask, text: str) -> dict[str, bool]:
    """Score each part of an answer; an answer is right if every part is.

    Returns:
        ``item``: the answer contains the item's name as whole words; ``number``: the exact price is
        the only number, without words such as "about"; ``unit``: the right unit is the only unit;
        ``short``: one plain sentence of at most ``MAX_WORDS`` words.
    """
    text = text.strip()
    words = _WORD.findall(text.lower())
    return {
        "item": f" {task.item} " in f" {' '.join(words)} ",
        "number": [word for word in words if re.search(r"\d", word)] == [str(task.price)]
        and _HEDGES.isdisjoint(words),
        "unit": [word for word in words if word in UNITS] == [task.unit],
        "short": len(words) <= MAX_WORDS and bool(_PLAIN_SENTENCE.fullmatch(text)),
    }


def wrong(task: PriceTask, text: str) -> str:
    """Return what is wrong with an answer, for people and prompt optimisers; empty if it is right."""
    parts = score(task, text)
    return "; ".join(_WRONG[part] for part, right in parts.items() if not right)


def reward(task: PriceTask, text: str) -> float:
    """Return 1.0 if every part of `score` is right, else 0.0."""
    return float(all(score(task, text).values()))
