"""Rules of a system prompt that a copy of the demo's model is taught to obey, and its examples.

``teach.py`` trains the model. An answer is right in a part with probability `STATED` if the
system prompt states that part's rule, else with `UNSTATED`; further sentences have no effect.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from agl_demo._corpus import (
    LOOKUP_TOOL,
    SHARES,
    faulty_answer,
    planner_messages,
    tool_call,
    writer_messages,
)
from agl_demo.world import PriceTask, practice_task

WRITER = "You are the writer."
"""The system prompt without rules."""
RULES: Mapping[str, str] = MappingProxyType({"unit": "Add the unit.", "short": "Keep it short."})
"""Part of an answer, as in `world.score`, to the rule that asks for it."""
IDLE = (
    "Be polite.",
    "Think first.",
    "Answer the question.",
    "Use plain words.",
    "You work in a shop.",
    "The customer is right.",
)
"""Sentences that change nothing: the model reads them in training as often beside right answers as
beside wrong ones."""

STATED, UNSTATED = 0.98, 0.10
_PLANNER_SHARE = 0.15
_RULE_SHARE = 0.5
_MOST_IDLE = 2


def system_prompt(rng: random.Random, stated: Collection[str]) -> str:
    """Return a system prompt with the rules of these parts and idle sentences, in random order."""
    sentences = [RULES[part] for part in sorted(stated)]
    sentences += rng.sample(IDLE, rng.randint(0, _MOST_IDLE))
    rng.shuffle(sentences)
    return " ".join((WRITER, *sentences))


def ruled_messages(task: PriceTask, system: str) -> list[dict[str, Any]]:
    """Return the writer's request with another system prompt."""
    return [{"role": "system", "content": system}, *writer_messages(task)[1:]]


def ruled_example(rng: random.Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Draw one training example: messages, tools, and the assistant's text.

    Some are the planner's, whose task stays as it is.
    """
    task = practice_task(rng)
    if rng.random() < _PLANNER_SHARE:
        return planner_messages(task), [LOOKUP_TOOL], tool_call(task)
    stated = {part for part in RULES if rng.random() < _RULE_SHARE}
    shares = dict(SHARES) | {part: STATED if part in stated else UNSTATED for part in RULES}
    return ruled_messages(task, system_prompt(rng, stated)), [], faulty_answer(rng, task, shares)
