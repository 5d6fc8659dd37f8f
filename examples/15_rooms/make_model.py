"""Make this example's model: ``python make_model.py --out model``.

It learns to call the tool and to answer, and to obey one wording of each rule: with it in the
system prompt the agent nearly always does what it says, without it seldom. The other sentences of
the critic's list have no effect. Works offline, in some minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from agl_demo.small import make_small
from critic import WORDINGS
from office import DAYS, NEEDS, NO_ROOMS, NONE, NUMBERS, SEATS, TIMES, TOOL
from program import SYSTEM
from run_agent import FORMS, TEAMS

OBEYED = {
    "time": "Give find_rooms the time.",
    "people": "Give find_rooms the number of people.",
    "needs": "Give find_rooms what they need.",
    "smallest": "Take the smallest room.",
    "none": "If it finds no rooms, answer none.",
}
"""What the model does, and the sentence with which it does it."""
IDLE = tuple(
    each for wordings in WORDINGS.values() for each in wordings if each not in OBEYED.values()
)
STATED, UNSTATED = 0.98, 0.10
"""Shares of the training data in which a rule is obeyed: stated in the prompt, or not."""
STEPS, HIDDEN, LAYERS = 1200, 128, 2
HALF, MOST_IDLE = 0.5, 4

Example = tuple[list[dict[str, Any]], list[dict[str, Any]], str]


def draw(chance: random.Random) -> Example:
    """Draw a request with its call of the tool, or with the answer after it."""
    stated = {rule for rule in OBEYED if chance.random() < HALF}
    wanted = {
        "day": chance.choice(DAYS),
        "time": chance.choice(TIMES),
        "people": chance.choice(NUMBERS),
        "needs": chance.choice(NEEDS),
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system(chance, stated)},
        {"role": "user", "content": chance.choice(FORMS).format(**wanted)},
    ]
    given = {name: wanted[name] for name in wanted if name == "day" or obeys(chance, name, stated)}
    if chance.random() < HALF:
        return messages, [TOOL], call(given)
    found = [room for room in SEATS if chance.random() < chance.choice((0.0, 0.2, 0.4, 0.8))]
    function = {"name": TOOL["function"]["name"], "arguments": json.dumps(given)}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": ", ".join(found) or NO_ROOMS},
    ]
    return messages, [TOOL], answer(chance, found, stated)


def system(chance: random.Random, stated: Collection[str]) -> str:
    """Return a system prompt with these rules and some sentences without effect, in any order."""
    sentences = [OBEYED[rule] for rule in sorted(stated)]
    sentences += chance.sample(IDLE, chance.randint(0, MOST_IDLE))
    chance.shuffle(sentences)
    return " ".join((SYSTEM.format(team=chance.choice(TEAMS)), *sentences))


def obeys(chance: random.Random, rule: str, stated: Collection[str]) -> bool:
    """Draw whether a rule is obeyed."""
    return chance.random() < (STATED if rule in stated else UNSTATED)


def call(given: dict[str, str]) -> str:
    """Return a call of the tool in the chat template's text form."""
    name = TOOL["function"]["name"]
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"


def answer(chance: random.Random, found: Sequence[str], stated: Collection[str]) -> str:
    """Draw an answer to what the tool found."""
    if not found:
        return NONE if obeys(chance, "none", stated) else chance.choice([*SEATS])
    return found[0] if obeys(chance, "smallest", stated) else chance.choice(found)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_model.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    make_small(
        options.out,
        draw,
        steps=options.steps,
        seed=options.seed,
        hidden_size=HIDDEN,
        layers=LAYERS,
    )


if __name__ == "__main__":
    main()
