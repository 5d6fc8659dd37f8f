"""What the benchmarks ``imitation`` and ``together`` train: the writer of the demo, by itself.

The writer gets the question and the right result of the lookup, as the demo's planner and tool give
it. Without the planner's calls a rollout takes half of the time.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

from agl_demo import world
from agl_demo.rules import IDLE, RULES, WRITER
from agl_demo.training import few_held_out_tasks, held_out_tasks, reward, rows, train_tasks
from openai import AsyncOpenAI

import agl_core as agl

__all__ = [
    "editor",
    "few_held_out_tasks",
    "graded",
    "held_out_tasks",
    "other_tasks",
    "reward",
    "run_agent",
    "run_ruled_agent",
    "train_tasks",
    "val_tasks",
]

SENTENCES = (*RULES.values(), *IDLE)
"""What the editor adds and leaves out: two rules that the taught model obeys, and six sentences
that change nothing."""
MAX_TOKENS = 40
_OTHER, _VAL = 1590, 24


async def run_agent(task: agl.Task) -> str:
    """Let the writer answer a task with the demo's prompt."""
    return await _answer(task, world.WRITER_SYSTEM)


async def run_ruled_agent(task: agl.Task) -> str:
    """Let the writer answer a task with a prompt that states no rule."""
    return await _answer(task, WRITER)


async def _answer(task: agl.Task, system: str) -> str:
    asked = world.PriceTask(**task.input)
    result = world.tool_result(asked.item, asked.price, asked.unit)
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": world.writer_request(asked.question, result)},
    ]
    async with AsyncOpenAI() as client:
        with agl.agent_scope("writer"):
            reply = await client.chat.completions.create(
                model="writer", messages=messages, max_completion_tokens=MAX_TOKENS
            )
    return reply.choices[0].message.content or ""


def other_tasks() -> list[agl.Task]:
    """Return questions about items of which neither training nor held-out tasks ask."""
    used = {task.input["item"] for task in train_tasks()}
    return [task for task in rows("train", _OTHER, 1) if task.input["item"] not in used]


def val_tasks() -> list[agl.Task]:
    """Return questions that choose prompts."""
    return other_tasks()[:_VAL]


def graded(task: agl.Task, output: Any, attempt: agl.AttemptRecord) -> agl.Score:
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
