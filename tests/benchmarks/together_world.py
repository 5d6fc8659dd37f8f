"""What the benchmark ``together`` trains: the demo's program, whose writer's prompt states no rule.

The writer plays a copy of the demo's model that `agl_demo.teach` taught to obey two rules where the
system prompt states them. The editor knows these rules and six sentences that change nothing, and
not which is which.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from agl_demo import agent, world
from agl_demo.rules import IDLE, RULES, WRITER
from agl_demo.training import rows, run_agent

import agl_core as agl

__all__ = ["editor", "held_out_tasks", "reward", "run_agent", "train_tasks", "val_tasks"]

agent.WRITER_SYSTEM = WRITER
SENTENCES = (*RULES.values(), *IDLE)
_SEED = 1
_TRAIN, _VAL, _HELD_OUT = 400, 24, 200


def train_tasks() -> list[agl.Task]:
    """Return questions for steps, and for optimisers to look at."""
    return rows("train", _TRAIN + _VAL, _SEED)[:_TRAIN]


def val_tasks() -> list[agl.Task]:
    """Return questions that choose prompts."""
    return rows("train", _TRAIN + _VAL, _SEED)[_TRAIN:]


def held_out_tasks() -> list[agl.Task]:
    """Return questions for the reported score alone."""
    return rows("held_out", _HELD_OUT, _SEED)


def reward(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> agl.Score:
    """Return the share of right parts, with what is wrong; half of it is for all being right."""
    del attempt
    asked = world.PriceTask(**task.input)
    parts = world.score(asked, output)
    value = (sum(parts.values()) / len(parts) + all(parts.values())) / 2
    return agl.Score(value, world.wrong(asked, output))


_proposed: set[str] = set()


def editor(messages: list[dict[str, str]], role: str) -> str:
    """Return the current prompt with one sentence added or left out, at random, and not twice."""
    if role == "critic":
        return "Change one sentence."
    request = messages[-1]["content"]
    current = request.partition("<current>\n")[2].partition("\n</current>")[0]
    rng = random.Random(hashlib.sha256(request.encode()).digest())
    neighbours = [_changed(current, each) for each in SENTENCES]
    text = rng.choice([each for each in neighbours if each not in _proposed] or neighbours)
    _proposed.add(text)
    return f"```\n{text}\n```"


def _changed(text: str, sentence: str) -> str:
    """Return the text without the sentence if it has it, else with it at the end."""
    return text.replace(f" {sentence}", "") if sentence in text else f"{text} {sentence}"
