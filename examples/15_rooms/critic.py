"""A critic and an editor without a language model: a script that reads the reasons of scores.

The critic counts what the reasons of low scores complain about. For some of these faults the editor
adds a sentence to the prompt, or replaces the one that is there, by one of four wordings drawn at
random: it does not know which wording the model obeys. The same request has the same answer.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256

FAULTS = {
    "is booked on": "Rooms were chosen that are booked at that time.",
    "has too few seats": "Rooms were chosen that have too few seats.",
    "has no": "Rooms were chosen that lack what was asked for.",
    "is smaller": "Rooms were chosen although a smaller one fits.",
    "no room fits": "A room was invented where the tool found none.",
}
"""What a reason contains, and what the critic says about it."""
WORDINGS = {
    "is booked on": (
        "Avoid a clash.",
        "Check that it is free.",
        "Always state the hour.",
        "Look at bookings.",
    ),
    "has too few seats": (
        "State how many come.",
        "Avoid standing guests.",
        "Count chairs.",
        "Large groups matter.",
    ),
    "has no": (
        "Think of their wishes.",
        "Mention the equipment.",
        "Cables are not everywhere.",
        "They want to present.",
    ),
    "is smaller": (
        "Do not waste seats.",
        "Big ones are dear.",
        "Prefer snug ones.",
        "Take the smallest room.",
    ),
    "no room fits": (
        "Never invent one.",
        "If nothing is found, answer none.",
        "Be honest about it.",
        "It may be impossible.",
    ),
}
"""Sentences that the editor may write against a fault."""
MOST = 3
"""Most faults of a review."""
_BLOCK = re.compile(r"^```\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def edit(messages: Sequence[Mapping[str, str]], role: str = "") -> str:
    """Answer a request of `apo` to its critic or its editor, or of `gepa` to its editor."""
    del role  # an endpoint does not get it either
    request = messages[-1]["content"]
    if "<attempts>" in request:
        return review(request)
    if "<review>" in request:
        text = _between(request, "<current>\n", "\n</current>")
        found = [name for name, said in FAULTS.items() if said in request]
    else:
        block = _BLOCK.search(request)
        text = block[1] if block else ""
        found = faults(request)
    chance = random.Random(sha256(request.encode()).digest())
    return f"```\n{rewritten(text, found, chance)}\n```"


def review(request: str) -> str:
    """Return the critic's answer: what is wrong most often."""
    return "\n".join(FAULTS[name] for name in faults(request)) or "No fault was found."


def faults(request: str) -> list[str]:
    """Return the most frequent faults in the attempts of a request."""
    counted: Counter[str] = Counter()
    for attempt in request.split("Task: ")[1:]:
        why = attempt.partition("Why: ")[2]
        # Without the tool's "no rooms", the agent asked for too little.
        counted.update(
            name
            for name in FAULTS
            if name in why and (name != "no room fits" or "] no rooms" in attempt)
        )
    return [name for name, _ in counted.most_common(MOST)]


def rewritten(text: str, found: Sequence[str], chance: random.Random) -> str:
    """Return a prompt with a sentence against some of the faults; one sentence less without any."""
    if not found:
        known = [each for wordings in WORDINGS.values() for each in wordings if each in text]
        return text.replace(f" {chance.choice(known)}", "") if known else text
    for name in chance.sample(list(found), chance.randint(1, len(found))):
        old = next((each for each in WORDINGS[name] if each in text), "")
        new = chance.choice([each for each in WORDINGS[name] if each != old])
        text = text.replace(old, new) if old else f"{text} {new}"
    return text


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]
