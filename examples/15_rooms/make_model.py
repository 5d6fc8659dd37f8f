"""Make this example's model: ``python make_model.py --out model``.

It learns to call the tool and to answer, from conversations in which one wording of each rule is
obeyed: with it in the system prompt the agent nearly always does what it says, without it seldom.
The other sentences of the critic's list have no effect. Works offline, in ten minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agl_demo._sft import SftConfig
from agl_demo.small import make, train_more
from critic import WORDINGS
from office import DAYS, NEEDS, NO_ROOMS, NONE, NUMBERS, SEATS, TIMES, TOOL
from program import SYSTEM
from run_agent import FORMS, TEAMS

OBEYED = {
    "time": "Always state the hour.",
    "people": "State how many come.",
    "needs": "Mention the equipment.",
    "smallest": "Take the smallest room.",
    "none": "If nothing is found, answer none.",
}
"""What the agent of the training data does, and the sentence with which it does it."""
STATED, UNSTATED = 0.98, 0.10
"""Shares of the training data in which a rule is obeyed: stated in the prompt, or not."""
DRILLS, STEPS, MORE = 400, 900, 600
"""Optimizer steps: without a system prompt, with one, and with fewer calls of the tool."""
PEAK_LR = 2e-3
CALLS, FEWER = (True, False), (True, False, False, False)
"""Whether an example is a call, drawn from these; calls are longer than the answers after them."""
HIDDEN, LAYERS = 128, 2

Example = tuple[list[dict[str, Any]], list[dict[str, Any]], str]


def draw(chance: random.Random, calls: Sequence[bool] = CALLS) -> Example:
    """Draw a request with its call of the tool, or with the answer after it."""
    text, stated = system(chance)
    return example(chance, text, stated, calls)


def drill(chance: random.Random) -> Example:
    """Draw the same without a system prompt, with every rule obeyed: the copying of words."""
    messages, _, answer = example(chance, "", OBEYED)
    return messages[1:], [], answer


def example(
    chance: random.Random, text: str, stated: Collection[str], calls: Sequence[bool] = CALLS
) -> Example:
    """Draw a request with a system prompt that states some rules, and the next answer."""
    wanted = {
        "day": chance.choice(DAYS),
        "time": chance.choice(TIMES),
        "people": chance.choice(NUMBERS),
        "needs": chance.choice(NEEDS),
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text},
        {"role": "user", "content": chance.choice(FORMS).format(**wanted)},
    ]
    given = {name: wanted[name] for name in wanted if name == "day" or obeys(chance, name, stated)}
    if chance.choice(calls):
        return messages, [TOOL], call(given)
    density = chance.choice((0.0, 0.2, 0.4, 0.8))
    found = [room for room in SEATS if chance.random() < density]
    function = {"name": TOOL["function"]["name"], "arguments": json.dumps(given)}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
        {"role": "tool", "content": ", ".join(found) or NO_ROOMS},
    ]
    return messages, [TOOL], final(chance, found, stated)


def system(chance: random.Random) -> tuple[str, list[str]]:
    """Draw a system prompt: against each fault no sentence, the obeyed one, or another."""
    sentences: list[str] = []
    stated: list[str] = []
    for (rule, obeyed), wordings in zip(OBEYED.items(), WORDINGS.values(), strict=True):
        kind = chance.choice(("none", "obeyed", "other"))
        if kind == "obeyed":
            sentences.append(obeyed)
            stated.append(rule)
        elif kind == "other":
            sentences.append(chance.choice([each for each in wordings if each != obeyed]))
    chance.shuffle(sentences)
    return " ".join((SYSTEM.format(team=chance.choice(TEAMS)), *sentences)), stated


def obeys(chance: random.Random, rule: str, stated: Collection[str]) -> bool:
    """Draw whether a rule is obeyed."""
    return chance.random() < (STATED if rule in stated else UNSTATED)


def call(given: dict[str, str]) -> str:
    """Return a call of the tool in the chat template's text form."""
    name = TOOL["function"]["name"]
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"


def final(chance: random.Random, found: Sequence[str], stated: Collection[str]) -> str:
    """Draw an answer to what the tool found."""
    if not found:
        return NONE if obeys(chance, "none", stated) else chance.choice([*SEATS])
    return found[0] if obeys(chance, "smallest", stated) else chance.choice(found)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python make_model.py", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    config = SftConfig(
        seed=options.seed,
        drill_steps=DRILLS,
        steps=STEPS,
        peak_lr=PEAK_LR,
        prompt_weight=0.0,
        hidden_size=HIDDEN,
        layers=LAYERS,
    )
    make(options.out, draw, config, drill=drill)
    further = replace(config, seed=options.seed + 1, drill_steps=0, steps=MORE)
    train_more(options.out, partial(draw, calls=FEWER), further)


if __name__ == "__main__":
    main()
